--- @include "includes/fanout_options"
-- What to answer when nobody has this name.
local function nobody_error(state_key)
    if redis.call('EXISTS', state_key) == 0 then
        return redis.error_reply('UNKNOWN_QUEUE there is no queue of this name')
    end
    return redis.error_reply('UNKNOWN_CONSUMER no consumer of this name is registered with the queue')
end

-- Returns the options of a member and, behind a nil, their text; nil and the error to answer where nobody has this
-- name. A member that leaves counts only if asked for.
local function options_of(state_key, options_key, consumer, may_leave)
    local text = redis.call('HGET', options_key, consumer)
    local found = text and read_options(text)
    if found and (may_leave or found.mode ~= 'leaving') then
        return found, nil, text
    end
    return nil, nobody_error(state_key)
end
