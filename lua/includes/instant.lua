--- @include "includes/integers"
--- @include "includes/time"
-- Returns the instant that a caller gives, or the server's time; nothing if it is not an instant. Only callers with an
-- injected clock give one.
local function instant(text)
    if text == '' then
        return now_ms()
    end
    local given = integer(text)
    return given and given >= 0 and given or nil
end
