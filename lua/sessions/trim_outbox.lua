#!lua flags=allow-oom
--[[
Purpose
    Forget the changes of a session that the other store has, unless there have been others since they were read. Then
    all stay noted, but only the others count for how far it is behind.
KEYS
    [1]  session         fields of the session
ARGV
    [1]  epoch           of the session as the caller knows it
    [2]  outbox_version  as the caller has read it together with the changes
    [3]  read_ms         when that was, by this server's clock
Returns
    1  nothing is noted any more
    0  there have been other changes, or none ever
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
    -- A client that is written to all the time is never quite up to date, and yet not far behind.
    if fields[3] and (integer(fields[3]) or 0) < read_ms then
        redis.call('HSET', session_key, 'outbox_ms', ARGV[3])
    end
    return 0
end
redis.call('HDEL', session_key, 'outbox', 'outbox_ms')
return 1
