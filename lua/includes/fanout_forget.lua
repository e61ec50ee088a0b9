-- Forgets deduplication ids whose time is over; returns how many.
local function forget(remembered_key, deduplications_key, now, limit)
    local instants = string.format('%d', now)
    local forgotten = redis.call('ZRANGEBYSCORE', remembered_key, '-inf', instants, 'LIMIT', 0, limit)
    if #forgotten > 0 then
        redis.call('ZREM', remembered_key, unpack(forgotten))
        redis.call('HDEL', deduplications_key, unpack(forgotten))
    end
    return #forgotten
end
