--- @include "includes/time"
-- What was said is done as it was said, for the same instant; after a minute, or where the clock is another, for the
-- present.
local function as_of(said_ms)
    local now = now_ms()
    local is_fresh = said_ms > 0 and said_ms <= now and now - said_ms <= 60000
    return is_fresh and said_ms or now
end
