#!lua flags=allow-oom
--[[
Purpose
    Remove the records of changes that the other store has, unless there were other changes since they were read. In
    that case all records stay, but only the other changes count as delay of the mirror.
KEYS
    [1]  session         fields of the session
ARGV
    [1]  epoch           of the session as the caller knows it
    [2]  outbox_version  version that the caller has read together with the changes
    [3]  read_ms         time of that reading, by this server's clock
Returns
    1  no records are left
    0  there were other changes, or there never were any
Errors
    INVALID  an argument is not an integer of 0 or more
    STALE    the session has another epoch
Cost
    O(1); about 4 us.
]]
--- @include "includes/integers"
--- @include "includes/outbox_read"
redis.call('HDEL', session_key, 'outbox', 'outbox_ms')
return 1
