-- Notes how large the largest entry of a queue ever was, if that is known of those before.
local function note_largest(key, known, size)
    if known and size > known + 0 then
        redis.call('HSET', key, 'largest_bytes', string.format('%.0f', size))
    end
end
