-- If only the state of a queue was lost, its sequences continue after those in use.
local function highest_sequence(key)
    return tonumber(redis.call('ZRANGE', key, '0', '0', 'REV', 'WITHSCORES')[2] or '0')
end

-- The incarnation tells a queue from an earlier one of the same name that was dropped. It counts microseconds, since a
-- queue may be dropped and created again within a millisecond.
local function create_queue(key, highest)
    local time = redis.call('TIME')
    local incarnation = string.format('%.0f', time[1] * 1000000 + time[2])
    redis.call(
        'HSET', key, 'version', '1', 'incarnation', incarnation, 'sequence', string.format('%.0f', highest),
        'sent', '0', 'acked', '0', 'epoch', '0', 'bytes', '0', 'last_ms', '0'
    )
    return incarnation
end
