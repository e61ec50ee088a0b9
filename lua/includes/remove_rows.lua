-- Removes messages of a queue from its four indexes. This comes last in a script: while a cluster moves a slot, a
-- script must not touch a key again that it has emptied.
local function remove_rows(order_key, times_key, values_key, tombstones_key, names)
    redis.call('ZREM', order_key, unpack(names))
    redis.call('ZREM', times_key, unpack(names))
    redis.call('ZREM', tombstones_key, unpack(names))
    redis.call('HDEL', values_key, unpack(names))
end
