local NUMBERS_PER_TRIM = 64

-- Removes the entries that every cursor has passed, of which this is the lowest; all of them without one.
local function trim_log(keys, lowest)
    if lowest then
        redis.call('XTRIM', keys.log, 'MINID', '~', string.format('%d', tonumber(lowest) + 1))
    else
        redis.call('XTRIM', keys.log, 'MAXLEN', 0)
    end
end

local function move_cursor(keys, consumer, from, to)
    redis.call('ZADD', keys.cursors, string.format('%d', to), consumer)
    -- Trimming each time would cost as much as reading.
    if math.floor(from / NUMBERS_PER_TRIM) < math.floor(to / NUMBERS_PER_TRIM) then
        trim_log(keys, redis.call('ZRANGE', keys.cursors, 0, 0, 'WITHSCORES')[2])
    end
end
