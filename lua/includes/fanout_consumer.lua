--- @include "includes/fanout_options"
-- Returns the error for a name that no consumer has.
local function nobody_error(state_key)
    if redis.call('EXISTS', state_key) == 0 then
        return redis.error_reply('UNKNOWN_QUEUE there is no queue of this name')
    end
    return redis.error_reply('UNKNOWN_CONSUMER no consumer of this name is registered with the queue')
end

-- Returns the options of a member, a nil, and their text; or nil and the error, if no consumer has this name. A
-- consumer that leaves counts only on request.
local function options_of(state_key, options_key, consumer, may_leave)
    local text = redis.call('HGET', options_key, consumer)
    local found = text and read_options(text)
    if found and (may_leave or found.mode ~= 'leaving') then
        return found, nil, text
    end
    return nil, nobody_error(state_key)
end
