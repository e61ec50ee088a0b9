#!lua flags=allow-oom
--[[
Purpose
    Make a session the only consumer of a queue, which is created if it does not exist. The next fetches deliver
    messages in flight again, before anything else.
KEYS
    [1-5]  state, order, times, in_flight, wake
ARGV
    [1]  session         name of the consumer's session
    [2]  mode            takeover, or if_free: refused while the lease of another session runs
    [3]  lease_ms        length of the lease without a heartbeat, 1 or more
    [4]  now             ms; empty: the server's clock
    [5]  start           where to begin: empty: at the cursor; else earliest, latest, seq:<sequence to be next> or
                         ms:<instant>, after which nothing is in flight any more
Returns
    {incarnation, epoch, acked, sent, sequence, lag, in_flight, previous_session, is_clamped}  the first two are the
                         fence of all further calls; lag: entries not delivered yet; empty for no previous session;
                         1 when start does not exist and the nearest place was taken
Errors
    INVALID  an argument breaks the rules above
    LAYOUT   the queue was written by a later version
    HELD     if_free, and the lease of another session runs
Cost
    O(log N) for N keys; about 20 us.
]]
--- @include "includes/create_queue"
--- @include "includes/instant"
--- @include "includes/next_epoch"
--- @include "includes/position"
--- @include "includes/wake"

local state_key, order_key, times_key, in_flight_key, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local session, mode, lease_ms, now, start = ARGV[1], ARGV[2], integer(ARGV[3]), instant(ARGV[4]), ARGV[5]

if #KEYS ~= 5 or #ARGV ~= 5 or session == '' then
    return redis.error_reply('INVALID 5 keys, a session and 4 more arguments are expected')
end
if mode ~= 'takeover' and mode ~= 'if_free' then
    return redis.error_reply('INVALID mode is neither takeover nor if_free')
end
if not lease_ms or lease_ms < 1 or not now then
    return redis.error_reply('INVALID lease is not an integer of 1 or more, or now is none of 0 or more')
end

local fields = redis.call(
    'HMGET', state_key, 'version', 'incarnation', 'epoch', 'sequence', 'sent', 'acked', 'session', 'lease_until_ms',
    'last_ms', 'last_removed_sequence'
)
if fields[1] and fields[1] ~= '1' then
    return redis.error_reply('LAYOUT the queue has layout ' .. fields[1])
end
local previous = fields[7] or ''
if mode == 'if_free' and previous ~= '' and previous ~= session and tonumber(fields[8] or '0') > now then
    return redis.error_reply('HELD session ' .. previous .. ' consumes the queue')
end
local incarnation = fields[2]
local sequence = fields[4] and fields[4] + 0 or highest_sequence(order_key)
local epoch = string.format('%.0f', next_epoch(fields[3]))
local sent, acked = tonumber(fields[5] or '0'), tonumber(fields[6] or '0')
local next_sequence, is_clamped = nil, 0
if start ~= '' then
    next_sequence, is_clamped = position(start, order_key, times_key, sequence, fields[9], fields[10])
    if not next_sequence then
        return redis.error_reply('INVALID start does not parse')
    end
end

if not incarnation then
    incarnation = create_queue(state_key, sequence)
end
local in_flight = 0
if next_sequence then
    sent, acked = next_sequence - 1, next_sequence - 1
    redis.call('UNLINK', in_flight_key)
    redis.call('HINCRBY', state_key, 'rewinds', 1)
else
    in_flight = redis.call('ZCARD', in_flight_key)
end
local sent_text = string.format('%.0f', sent)
redis.call(
    'HSET', state_key, 'epoch', epoch, 'session', session, 'lease_until_ms', string.format('%.0f', now + lease_ms),
    'sent', sent_text, 'acked', string.format('%.0f', acked), 'resend_after', '0', 'resend_up_to', sent_text
)
local lag = redis.call('ZCOUNT', order_key, '(' .. sent_text, '+inf')
-- Wake also when no message waits: a consumer that had the queue before learns that it was replaced.
wake(wake_key, string.format('%.0f', sequence))
return { incarnation + 0, epoch + 0, acked, sent, sequence, lag, in_flight, previous, is_clamped }
