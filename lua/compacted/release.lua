#!lua flags=allow-oom
--[[
Purpose
    End a consumer's lease, so that another session may subscribe at once. Messages in flight stay in flight. A consumer
    that was replaced wakes its successor, since it may have taken the successor's wake-up. A wake-up that nobody waits
    for is removed.
KEYS
    [1-2]  state, wake
ARGV
    [1]  incarnation     of the subscription
    [2]  epoch           of the subscription
Returns
    1  the lease has ended
    0  the subscription was no longer the current one, or the queue is gone
Errors
    INVALID  2 keys and 2 arguments are expected
Cost
    O(1); about 5 us.
]]
--- @include "includes/wake"

local state_key, wake_key, incarnation, epoch = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
if #KEYS ~= 2 or #ARGV ~= 2 then
    return redis.error_reply('INVALID 2 keys and 2 arguments are expected')
end
local fields = redis.call('HMGET', state_key, 'incarnation', 'epoch', 'session', 'sequence')
if fields[1] ~= incarnation or fields[2] ~= epoch then
    if fields[3] and fields[3] ~= '' then
        wake(wake_key, fields[4])
    end
    return 0
end
redis.call('HSET', state_key, 'session', '', 'lease_until_ms', '0')
redis.call('UNLINK', wake_key)
return 1
