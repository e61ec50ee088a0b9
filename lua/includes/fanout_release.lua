-- Takes one reference of each of at most 1,000 different ids away. A message that nobody owes any longer goes: payload,
-- count and expiry. One whose payload has expired has no count any more, and none is made.
local function release(keys, ids)
    if #ids == 0 then
        return 0
    end
    local gone = {}
    for position, count in ipairs(redis.call('HMGET', keys.references, unpack(ids))) do
        if count and tonumber(count) > 1 then
            redis.call('HINCRBY', keys.references, ids[position], -1)
        elseif count then
            gone[#gone + 1] = ids[position]
        end
    end
    if #gone == 0 then
        return 0
    end
    local bytes = 0
    for _, id in ipairs(gone) do
        bytes = bytes + redis.call('HSTRLEN', keys.messages, id)
    end
    local freed = redis.call('HDEL', keys.messages, unpack(gone))
    redis.call('HDEL', keys.references, unpack(gone))
    redis.call('ZREM', keys.expiries, unpack(gone))
    redis.call('HINCRBY', keys.state, 'bytes', string.format('%d', -bytes))
    redis.call('HINCRBY', keys.state, 'freed', freed)
    return freed
end
