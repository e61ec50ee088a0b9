--- @include "includes/integers"
--- @include "includes/time"
-- Callers give an instant only where a clock is injected; nothing for what is no instant.
local function instant(text)
    if text == '' then
        return now_ms()
    end
    local given = integer(text)
    return given and given >= 0 and given or nil
end
