--- @include "includes/fanout_cursor"
-- Removes a cursor, and what it alone kept in the log.
local function leave_log(keys, consumer)
    local lowest = redis.call('ZRANGE', keys.cursors, 0, 1, 'WITHSCORES')
    trim_log(keys, lowest[1] == consumer and lowest[4] or lowest[1] ~= consumer and lowest[2])
    redis.call('ZREM', keys.cursors, consumer)
end
