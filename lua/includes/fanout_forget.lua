-- Removes deduplication ids that have expired and returns their number. A caller that only counts skips those of
-- earlier pages.
local function forget(remembered_key, deduplications_key, now, limit, behind)
    local instants = string.format('%d', now)
    local forgotten = redis.call('ZRANGEBYSCORE', remembered_key, '-inf', instants, 'LIMIT', behind or 0, limit)
    if #forgotten > 0 then
        redis.call('ZREM', remembered_key, unpack(forgotten))
        redis.call('HDEL', deduplications_key, unpack(forgotten))
    end
    return #forgotten
end
