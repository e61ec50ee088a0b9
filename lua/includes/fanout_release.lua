--- @include "includes/fanout_remove"
-- Removes one reference of each of at most 1,000 different ids. A message that no consumer owes an ack for is removed;
-- it counts as expired if its payload was gone before. A message that was removed before gets no count. Expired
-- messages, if any, are removed with them, whichever consumers owe an ack for them.
local function release(keys, ids, over)
    local gone = {}
    if #ids > 0 then
        for position, count in ipairs(redis.call('HMGET', keys.references, unpack(ids))) do
            if count and tonumber(count) > 1 then
                redis.call('HINCRBY', keys.references, ids[position], -1)
            elseif count then
                gone[#gone + 1] = ids[position]
            end
        end
    end
    local released = #gone
    for _, id in ipairs(over or {}) do
        gone[#gone + 1] = id
    end
    if #gone == 0 then
        return 0
    end
    local freed = remove(keys, gone, released)
    redis.call('HINCRBY', keys.state, 'freed', freed)
    if freed < #gone then
        redis.call('HINCRBY', keys.state, 'expired', #gone - freed)
    end
    return freed
end
