#!lua flags=allow-oom
--[[
Purpose
    Acknowledge a message instead of the consumer, which cannot process it.
KEYS
    [1-3]  state, in_flight, wake
ARGV
    [1]  sequence        of the message, which is in flight
    [2]  now             ms; empty: the server's clock
Returns
    {acked_now, unknown, acked, in_flight}  1 and 0, or 0 and 1 when the message was not in flight; sequence up to
                         which all is acknowledged; messages in flight now
Errors
    INVALID        an argument breaks the rules above
    UNKNOWN_QUEUE  there is no such queue
Cost
    O(log W) for W messages in flight; about 10 us.
]]
--- @include "includes/acked_up_to"
--- @include "includes/instant"
--- @include "includes/wake"

local state_key, in_flight_key, wake_key = KEYS[1], KEYS[2], KEYS[3]
local sequence, now = ARGV[1], instant(ARGV[2] or '-')
if #KEYS ~= 3 or #ARGV ~= 2 or not integer(sequence) or not now then
    return redis.error_reply('INVALID 3 keys, a sequence and an instant are expected')
end
local fields = redis.call('HMGET', state_key, 'sent', 'acked', 'session')
if not fields[1] then
    return redis.error_reply('UNKNOWN_QUEUE there is no such queue')
end

local in_flight = redis.call('ZCARD', in_flight_key)
local acked_now = redis.call('ZREM', in_flight_key, sequence)
in_flight = in_flight - acked_now
local acked = acked_up_to(in_flight_key, in_flight, fields[1] + 0, fields[2] + 0)
if acked_now > 0 then
    redis.call('HINCRBY', state_key, 'skipped', 1)
    redis.call('HSET', state_key, 'acked', string.format('%.0f', acked), 'acked_ms', string.format('%.0f', now))
    if fields[3] and fields[3] ~= '' then
        wake(wake_key, sequence)
    end
end
return { acked_now, 1 - acked_now, acked, in_flight }
