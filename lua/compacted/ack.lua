#!lua flags=allow-oom
--[[
Purpose
    Acknowledge messages, in any order and any number of times. The messages stay, for a rewind, until retention ends.
KEYS
    [1-2]  state, in_flight
ARGV
    [1]  incarnation     of the subscription
    [2]  epoch           of the subscription
    [3]  mode            each: the messages named; up_to: everything in flight up to the one sequence named
    [4]  now             ms; empty: the server's clock
    [5+] sequences       of a message; at most 1,000
Returns
    {acked_now, unknown, acked, in_flight}  messages acknowledged by this call; messages not in flight: acknowledged
                         before or never delivered (up_to: 1 when nothing was in flight up to there); sequence up to
                         which all is acknowledged; messages in flight now
Errors
    INVALID  an argument breaks the rules above
    STALE    the subscription is not the current one, or the queue is gone
Cost
    O(M log W) for M sequences and a window of W; about 10 us. Mode up_to removes at most the whole window.
]]
--- @include "includes/acked_up_to"
--- @include "includes/instant"
--- @include "includes/stale"

local ACKS_PER_CALL = 1000
local FIRST_SEQUENCE = 5

local state_key, in_flight_key = KEYS[1], KEYS[2]
local incarnation, epoch, mode, now = ARGV[1], ARGV[2], ARGV[3], instant(ARGV[4])
local count = #ARGV - FIRST_SEQUENCE + 1

if #KEYS ~= 2 or count < 1 or count > ACKS_PER_CALL then
    return redis.error_reply('INVALID 2 keys, 4 arguments and 1 to ' .. ACKS_PER_CALL .. ' sequences are expected')
end
if mode ~= 'each' and (mode ~= 'up_to' or count ~= 1) then
    return redis.error_reply('INVALID mode is neither each nor up_to with one sequence')
end
if not now then
    return redis.error_reply('INVALID now is neither empty nor an integer of 0 or more')
end
for index = FIRST_SEQUENCE, #ARGV do
    if not integer(ARGV[index]) then
        return redis.error_reply('INVALID sequence ' .. index - FIRST_SEQUENCE + 1 .. ' is not an integer')
    end
end
local fields = redis.call('HMGET', state_key, 'incarnation', 'epoch', 'sent', 'acked')
local refusal = stale(fields, incarnation, epoch)
if refusal then
    return refusal
end

local in_flight = redis.call('ZCARD', in_flight_key)
local acked_now, unknown
if mode == 'each' then
    acked_now = redis.call('ZREM', in_flight_key, unpack(ARGV, FIRST_SEQUENCE))
    unknown = count - acked_now
else
    acked_now = redis.call('ZREMRANGEBYSCORE', in_flight_key, '-inf', ARGV[FIRST_SEQUENCE])
    unknown = acked_now == 0 and 1 or 0
end
in_flight = in_flight - acked_now
local acked = acked_up_to(in_flight_key, in_flight, fields[3] + 0, fields[4] + 0)
if acked_now > 0 then
    redis.call('HINCRBY', state_key, 'acks', acked_now)
    redis.call('HSET', state_key, 'acked', string.format('%.0f', acked), 'acked_ms', string.format('%.0f', now))
end
if unknown > 0 then
    redis.call('HINCRBY', state_key, 'repeated_acks', unknown)
end
return { acked_now, unknown, acked, in_flight }
