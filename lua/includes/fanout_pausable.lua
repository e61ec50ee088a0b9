--- @include "includes/fanout_consumer"
-- Returns the error if there is no such queue, or, unless the name is empty, no such member of it.
local function pausable_error(state_key, options_key, consumer)
    if consumer ~= '' then
        local _, unknown = options_of(state_key, options_key, consumer)
        return unknown
    end
    if redis.call('EXISTS', state_key) == 0 then
        return redis.error_reply('UNKNOWN_QUEUE there is no queue of this name')
    end
    return nil
end
