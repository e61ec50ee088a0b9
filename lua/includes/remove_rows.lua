-- Removes messages of a queue from its four indexes. It comes last in a script: while its slot moves, a key that a
-- script has emptied is not this server's any more.
local function remove_rows(order_key, times_key, values_key, tombstones_key, names)
    redis.call('ZREM', order_key, unpack(names))
    redis.call('ZREM', times_key, unpack(names))
    redis.call('ZREM', tombstones_key, unpack(names))
    redis.call('HDEL', values_key, unpack(names))
end
