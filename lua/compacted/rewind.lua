#!lua flags=allow-oom
--[[
Purpose
    Move a queue's cursor, back or forward. Afterwards nothing is in flight, and the subscription is not valid any more,
    so that a late acknowledgement cannot count for a message that is delivered again: the consumer is woken, finds its
    fence stale and subscribes again.
KEYS
    [1-5]  state, order, times, in_flight, wake
ARGV
    [1]  incarnation     of the subscription; empty for a person, who has none
    [2]  epoch           of the subscription; empty together with incarnation
    [3]  to              earliest, latest, seq:<sequence to be next> or ms:<instant of the append to be next, at least>
Returns
    {old_acked, new_acked, to_deliver, is_clamped, oldest_sequence, incarnation, epoch}  to_deliver: entries after the
                         cursor now; 1 when the place does not exist and the nearest was taken; 0 for an empty queue;
                         the last two as they are now
Errors
    INVALID        an argument breaks the rules above
    STALE          the subscription is not the current one, or the queue is gone
    UNKNOWN_QUEUE  there is no such queue, and no fence was given
Cost
    O(log N) for N keys; about 20 us. What is in flight is freed in the background.
]]
--- @include "includes/next_epoch"
--- @include "includes/position"
--- @include "includes/stale"
--- @include "includes/wake"

local state_key, order_key, times_key, in_flight_key, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local incarnation, epoch, to = ARGV[1], ARGV[2], ARGV[3]
if #KEYS ~= 5 or #ARGV ~= 3 or (incarnation == '') ~= (epoch == '') then
    return redis.error_reply('INVALID 5 keys, a whole fence or none, and a position are expected')
end
local fields = redis.call(
    'HMGET', state_key, 'incarnation', 'epoch', 'sequence', 'acked', 'last_ms', 'session', 'last_removed_sequence'
)
local refusal = epoch ~= '' and stale(fields, incarnation, epoch)
if refusal then
    return refusal
end
if not fields[1] then
    return redis.error_reply('UNKNOWN_QUEUE there is no such queue')
end
local sequence, old_acked = fields[3] + 0, fields[4] + 0
local next_sequence, is_clamped, oldest = position(to, order_key, times_key, sequence, fields[5], fields[7])
if not next_sequence then
    return redis.error_reply('INVALID position does not parse')
end

local acked_text, new_epoch = string.format('%.0f', next_sequence - 1), next_epoch(fields[2])
redis.call('UNLINK', in_flight_key)
redis.call(
    'HSET', state_key, 'sent', acked_text, 'acked', acked_text, 'epoch', string.format('%.0f', new_epoch),
    'resend_after', '0', 'resend_up_to', '0'
)
redis.call('HINCRBY', state_key, 'rewinds', 1)
if fields[6] and fields[6] ~= '' then
    wake(wake_key, acked_text)
end
local to_deliver = redis.call('ZCOUNT', order_key, '(' .. acked_text, '+inf')
return { old_acked, next_sequence - 1, to_deliver, is_clamped, oldest, fields[1] + 0, new_epoch }
