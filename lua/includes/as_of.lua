--- @include "includes/time"
-- Act for the instant of the earlier answer, so that the result is as it said; after a minute, or if the clock differs,
-- act for the present.
local function as_of(said_ms)
    local now = now_ms()
    local is_fresh = said_ms > 0 and said_ms <= now and now - said_ms <= 60000
    return is_fresh and said_ms or now
end
