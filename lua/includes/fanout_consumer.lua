--- @include "includes/fanout_options"
-- Options of a member; nil and the error to answer when there is none of this name.
local function options_of(state_key, options_key, consumer)
    local text = redis.call('HGET', options_key, consumer)
    local found = text and read_options(text)
    if found and found.mode ~= 'leaving' then
        return found
    end
    if redis.call('EXISTS', state_key) == 0 then
        return nil, redis.error_reply('UNKNOWN_QUEUE there is no queue of this name')
    end
    return nil, redis.error_reply('UNKNOWN_CONSUMER no consumer of this name is registered with the queue')
end
