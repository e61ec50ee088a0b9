#!lua flags=allow-oom
--[[
Purpose
    Extend the lease of a consumer, and wake it when messages wait for which it has not been woken.
KEYS
    [1-4]  state, order, in_flight, wake
ARGV
    [1]  incarnation     of the subscription
    [2]  epoch           of the subscription
    [3]  lease_ms        length of the lease from now on, 1 or more
    [4]  now             ms; empty: the server's clock
Returns
    {lag, in_flight}     entries not delivered yet; messages in flight
Errors
    INVALID  an argument breaks the rules above
    STALE    the subscription is not the current one, or the queue is gone
Cost
    O(log N) for N keys; about 10 us.
]]
--- @include "includes/instant"
--- @include "includes/stale"
--- @include "includes/wake"

local state_key, order_key, in_flight_key, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local incarnation, epoch, lease_ms, now = ARGV[1], ARGV[2], integer(ARGV[3]), instant(ARGV[4])
if #KEYS ~= 4 or #ARGV ~= 4 or not lease_ms or lease_ms < 1 or not now then
    return redis.error_reply('INVALID 4 keys, a fence, a lease of 1 or more and an instant are expected')
end
local fields = redis.call('HMGET', state_key, 'incarnation', 'epoch', 'sent')
local refusal = stale(fields, incarnation, epoch)
if refusal then
    return refusal
end

redis.call('HSET', state_key, 'lease_until_ms', string.format('%.0f', now + lease_ms))
local lag = redis.call('ZCOUNT', order_key, '(' .. fields[3], '+inf')
if lag > 0 then
    wake(wake_key, fields[3])
end
return { lag, redis.call('ZCARD', in_flight_key) }
