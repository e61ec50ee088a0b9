#!lua flags=allow-oom
--[[
Purpose
    Lock a part of the registry of compacted queues for a collector, or extend its lock.
KEYS
    [1]  collector   collector of this part, and facts of its last collection
ARGV
    [1]  token       name of the collector; a repeated collection uses the same
    [2]  lease_ms    length of the lock without a further call
Returns
    1  the collector holds it
    0  another collector holds it
Errors
    INVALID  the token is empty, or the lease is not an integer of 1 or more
Cost
    O(1); about 4 us.
]]
--- @include "includes/integers"
--- @include "includes/time"

local collector_key = KEYS[1]
local token, lease_ms = ARGV[1], integer(ARGV[2])
if #KEYS ~= 1 or #ARGV ~= 2 then
    return redis.error_reply('INVALID 1 key and 2 arguments are expected')
end
if token == '' then
    return redis.error_reply('INVALID token is empty')
end
if not lease_ms or lease_ms < 1 then
    return redis.error_reply('INVALID lease is not an integer of 1 or more')
end

local now = now_ms()
local held = redis.call('HMGET', collector_key, 'token', 'lease_until_ms')
if held[1] and held[1] ~= token and (tonumber(held[2]) or 0) > now then
    return 0
end
redis.call('HSET', collector_key, 'token', token, 'lease_until_ms', string.format('%d', now + lease_ms))
return 1
