--- @include "includes/fanout_options"
-- Returns the options that a caller gives, or nil when they break a rule.
local function checked_options(text)
    local found = read_options(text)
    if
        not found
        or (found.mode ~= 'fifo' and found.mode ~= 'ordered')
        or (found.when_failed ~= 'skip' and found.when_failed ~= 'halt')
        or (found.when_full ~= 'reject' and found.when_full ~= 'drop_oldest')
        or found.lanes < 1
        or found.lanes > 64
        or (found.lanes > 1 and found.mode == 'fifo')
        or found.dead_retention_ms < 1
        or found.max_length > 9007199254740992
        or found.dead_retention_ms > 9007199254740992
        or found.idle_expiry_ms > 9007199254740992
    then
        return nil
    end
    return found
end
