--- @include "includes/time"
-- Extends the life of a session whose packet ids are used without a message; in hours, so that it seldom moves. Returns
-- whether it has moved.
local HOUR_MS = 3600000
local function keep(state, keep_ms)
    local wanted = keep_ms == '' and -1 or math.ceil((now_ms() + keep_ms) / HOUR_MS) * HOUR_MS
    local moves = state.until_ms ~= -1 and (wanted == -1 or wanted > state.until_ms)
    if moves then
        state.until_ms = wanted
    end
    return moves
end
