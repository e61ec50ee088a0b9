-- Records the size of the largest entry that a queue ever had, if it is known for earlier entries.
local function note_largest(key, known, size)
    if known and size > known + 0 then
        redis.call('HSET', key, 'largest_bytes', string.format('%.0f', size))
    end
end
