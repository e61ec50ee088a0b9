-- Removes 1 to 1,000 different messages: payload, count and expiry. Returns how many of the first ones had a payload:
-- one may have been removed by its own expiry. Its size is then unknown, so the sum of sizes is corrected when no other
-- payload is left.
local function remove(keys, ids, first)
    local bytes, payloads, of_first = 0, 0, 0
    for position, id in ipairs(ids) do
        local size = redis.call('HSTRLEN', keys.messages, id)
        bytes = bytes + size
        payloads = payloads + (size > 0 and 1 or 0)
        of_first = position <= first and payloads or of_first
    end
    if payloads < #ids and redis.call('HLEN', keys.messages) <= payloads then
        redis.call('HSET', keys.state, 'bytes', 0)
    else
        redis.call('HINCRBY', keys.state, 'bytes', string.format('%d', -bytes))
    end
    redis.call('HDEL', keys.messages, unpack(ids))
    redis.call('HDEL', keys.references, unpack(ids))
    redis.call('ZREM', keys.expiries, unpack(ids))
    return of_first
end
