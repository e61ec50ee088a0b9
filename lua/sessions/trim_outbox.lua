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

local session_key = KEYS[1]
local epoch, outbox_version, read_ms = integer(ARGV[1]), integer(ARGV[2]), integer(ARGV[3])
if #KEYS ~= 1 or #ARGV ~= 3 or not epoch or epoch < 0 or not outbox_version or outbox_version < 0
    or not read_ms or read_ms < 0
then
    return redis.error_reply('INVALID 1 key, an epoch, a version and an instant, integers of 0 or more, are expected')
end

local fields = redis.call('HMGET', session_key, 'epoch', 'outbox_version', 'outbox_ms')
if fields[1] ~= ARGV[1] then
    return redis.error_reply('STALE epoch ' .. (fields[1] or 'none') .. ' owns the session: ask for its owner')
end
if fields[2] ~= ARGV[2] then
    -- A client with constant changes is never quite up to date, and yet not far behind.
    if fields[3] and (integer(fields[3]) or 0) < read_ms then
        redis.call('HSET', session_key, 'outbox_ms', ARGV[3])
    end
    return 0
end
redis.call('HDEL', session_key, 'outbox', 'outbox_ms')
return 1
