#!lua flags=allow-oom
--[[
Purpose
    Acknowledge messages and return the next ones, in one round trip. First come messages in flight that a new
    subscription, or redeliver, asks for again; then new ones, in the order of their sequences.
KEYS
    [1-5]  state, order, times, values, in_flight
ARGV
    [1]  incarnation     of the subscription
    [2]  epoch           of the subscription
    [3]  window          messages that may be in flight, 1 to 65,535
    [4]  limit           messages of this call, 1 to 500
    [5]  max_bytes       limit for bytes of keys and values, 1 or more; the first message comes whatever its size
    [6]  refill          on_empty: new ones only when nothing is in flight; sliding: whenever the window has room;
                         going_on: as sliding, but the first message, too, comes only if it fits into max_bytes
    [7]  redeliver       1: return everything in flight again, from the lowest; later calls, with 0, continue until all
                         has come, before new messages. 0: continue
    [8]  now             ms; empty: the server's clock
    [9+] sequences       messages to acknowledge first, each on its own; at most 1,000
Returns
    {acked_now, unknown, acked, in_flight, lag, more_to_resend, redelivered, *messages(key, ms, sequence, value)}
                         messages acknowledged by this call; messages not in flight: acknowledged before or never
                         delivered; sequence up to which all is acknowledged; messages in flight now; entries not
                         delivered yet; 1 while there may be more to deliver again; how many of the messages are
                         delivered again, which are the first of them; then four per message: its instant is 0 where
                         that is lost, its sequence is its place in the order, and its value is
                         "<sequence> <flags> <record>", with flags 1 for a tombstone and else 0, unless it was damaged
Errors
    INVALID  an argument breaks the rules above
    STALE    the subscription is not the current one, or the queue is gone
Cost
    O(log N + M log W) for N keys, M messages and a window of W; about 25 us per call and 5 us per message of 1 KB.
    Memory grows by at most the window.
]]
--- @include "includes/acked_up_to"
--- @include "includes/instant"
--- @include "includes/note_largest"
--- @include "includes/stale"

local WINDOW = 65535
local LIMIT = 500
local ACKS_PER_CALL = 1000
local FIRST_SEQUENCE = 9

local state_key, order_key, times_key, values_key, in_flight_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local incarnation, epoch, window, limit = ARGV[1], ARGV[2], integer(ARGV[3]), integer(ARGV[4])
local max_bytes, refill, redeliver, now = integer(ARGV[5]), ARGV[6], ARGV[7], instant(ARGV[8])
local acks = #ARGV - FIRST_SEQUENCE + 1

if #KEYS ~= 5 or acks < 0 or acks > ACKS_PER_CALL then
    return redis.error_reply('INVALID 5 keys, 8 arguments and at most ' .. ACKS_PER_CALL .. ' sequences are expected')
end
if not window or window < 1 or window > WINDOW or not limit or limit < 1 or limit > LIMIT then
    return redis.error_reply('INVALID window is not 1 to ' .. WINDOW .. ', or limit not 1 to ' .. LIMIT)
end
if not max_bytes or max_bytes < 1 or not now then
    return redis.error_reply('INVALID max_bytes is not an integer of 1 or more, or now is none of 0 or more')
end
local goes_on = refill == 'going_on'
if (refill ~= 'on_empty' and refill ~= 'sliding' and not goes_on) or (redeliver ~= '0' and redeliver ~= '1') then
    return redis.error_reply('INVALID refill is not on_empty, sliding or going_on, or redeliver is neither 0 nor 1')
end
-- Members in flight are sequences; only other members have to be checked.
local held = acks > 0 and redis.call('ZMSCORE', in_flight_key, unpack(ARGV, FIRST_SEQUENCE)) or {}
for place = 1, acks do
    if not held[place] and not integer(ARGV[FIRST_SEQUENCE + place - 1]) then
        return redis.error_reply('INVALID sequence ' .. place .. ' is not an integer')
    end
end
local fields = redis.call(
    'HMGET', state_key, 'incarnation', 'epoch', 'sent', 'acked', 'resend_after', 'resend_up_to', 'bytes',
    'largest_bytes'
)
local refusal = stale(fields, incarnation, epoch)
if refusal then
    return refusal
end
local sent, old_acked = fields[3] + 0, fields[4] + 0

-- Members that are no longer in flight are removed with the last command on the key, after new ones are added: while a
-- cluster moves a slot, a script must not touch a key again that it has emptied.
local leaving, is_leaving = {}, {}
for place = 1, acks do
    local sequence = ARGV[FIRST_SEQUENCE + place - 1]
    if held[place] and not is_leaving[sequence] then
        is_leaving[sequence] = true
        leaving[#leaving + 1] = sequence
    end
end
local acked_now = #leaving
if acks > 0 then
    if acked_now > 0 then
        redis.call('HINCRBY', state_key, 'acks', acked_now)
    end
    if acked_now < acks then
        redis.call('HINCRBY', state_key, 'repeated_acks', acks - acked_now)
    end
end

local reply, bytes, messages = { 0, 0, 0, 0, 0, 0, 0 }, 0, 0
-- No value is larger than the largest so far, nor than all together. Appends of an earlier version have not recorded
-- the sizes of values, so the sizes that are read here are recorded, too.
local most_bytes, largest_bytes = tonumber(fields[7] or '0'), fields[8] and fields[8] + 0 or math.huge
local found_bytes = 0
-- Adds rows, given as keys and scores, to the reply until there are enough; returns the last sequence that was read. A
-- row without a value, which verify finds, must not hold up the others: it is no longer in flight.
local function deliver(rows, are_new)
    local first_may_wait = goes_on and are_new
    local keys, count = {}, #rows / 2
    if math.min(most_bytes, count * largest_bytes) <= max_bytes - bytes then
        for place = 1, count do
            keys[place] = rows[2 * place - 1]
        end
    else
        local size = bytes
        for place = 1, count do
            local key = rows[2 * place - 1]
            size = size + #key + redis.call('HSTRLEN', values_key, key)
            if size > max_bytes and (messages + #keys > 0 or first_may_wait) then
                break
            end
            keys[place] = key
        end
    end
    if #keys == 0 then
        return nil
    end
    local values, instants = redis.call('HMGET', values_key, unpack(keys)), nil
    local sequences, at, last = {}, #reply, nil
    for place = 1, #keys do
        local key, sequence, value = keys[place], rows[2 * place], values[place]
        local size = #key + (value and #value or 0)
        if size > found_bytes then
            found_bytes = size
        end
        if bytes + size > max_bytes and (messages > 0 or first_may_wait) then
            break
        end
        bytes, last = bytes + size, sequence + 0
        if value then
            instants = instants or redis.call('ZMSCORE', times_key, unpack(keys))
            messages = messages + 1
            reply[at + 1] = key
            reply[at + 2] = (instants[place] or '0') + 0
            reply[at + 3] = last
            reply[at + 4] = value
            at = at + 4
            sequences[#sequences + 1] = sequence
            sequences[#sequences + 1] = sequence
        elseif not are_new then
            leaving[#leaving + 1] = sequence
        end
    end
    if are_new and #sequences > 0 then
        redis.call('ZADD', in_flight_key, unpack(sequences))
    end
    return last
end

-- Deliver again: an entry that was overwritten comes with its newer value, and a removed one does not come.
local after, up_to = tonumber(fields[5] or '0'), tonumber(fields[6] or '0')
if redeliver == '1' then
    after, up_to = 0, sent
end
local old_after, old_up_to = fields[5], fields[6]
if after < up_to then
    local again = redis.call(
        'ZRANGE', in_flight_key, string.format('(%.0f', after), string.format('%.0f', up_to), 'BYSCORE',
        'LIMIT', '0', limit + acked_now, 'WITHSCORES'
    )
    local rows, looked_at, last_looked_at = {}, 0, nil
    for place = 1, #again, 2 do
        local sequence, score = again[place], again[place + 1]
        if looked_at == limit then
            break
        end
        if not is_leaving[sequence] then
            looked_at, last_looked_at = looked_at + 1, score + 0
            local key = redis.call('ZRANGE', order_key, score, score, 'BYSCORE', 'LIMIT', '0', '1')[1]
            if key and sequence == score then
                rows[#rows + 1] = key
                rows[#rows + 1] = sequence
            else
                leaving[#leaving + 1] = sequence
            end
        end
    end
    local last = deliver(rows, false)
    if last and last ~= rows[#rows] + 0 then
        after = last
    elseif looked_at == limit then
        after = last_looked_at
    else
        after = up_to
    end
    if messages > 0 then
        reply[7] = messages
        redis.call('HINCRBY', state_key, 'redelivered', messages)
    end
end

local in_flight = redis.call('ZCARD', in_flight_key) - #leaving
local room = math.min(limit - messages, window - in_flight)
if after >= up_to and room > 0 and (in_flight == 0 or refill ~= 'on_empty') and bytes < max_bytes then
    local before = messages
    local rows = redis.call(
        'ZRANGE', order_key, string.format('(%.0f', sent), '+inf', 'BYSCORE', 'LIMIT', '0', room, 'WITHSCORES'
    )
    sent = deliver(rows, true) or sent
    in_flight = in_flight + messages - before
    redis.call('HINCRBY', state_key, 'delivered', messages - before)
end

if #leaving > 0 then
    redis.call('ZREM', in_flight_key, unpack(leaving))
end
local acked = acked_up_to(in_flight_key, in_flight, sent, old_acked)
local sent_text = string.format('%.0f', sent)
local after_text, up_to_text = string.format('%.0f', after), string.format('%.0f', up_to)
if acked_now > 0 or acked ~= old_acked then
    redis.call('HSET', state_key, 'acked', string.format('%.0f', acked), 'acked_ms', string.format('%.0f', now))
end
if sent_text ~= fields[3] then
    redis.call('HSET', state_key, 'sent', sent_text)
end
if after_text ~= old_after or up_to_text ~= old_up_to then
    redis.call('HSET', state_key, 'resend_after', after_text, 'resend_up_to', up_to_text)
end
note_largest(state_key, fields[8], found_bytes)
reply[1], reply[2], reply[3], reply[4] = acked_now, acks - acked_now, acked, in_flight
reply[5] = redis.call('ZCOUNT', order_key, '(' .. sent_text, '+inf')
reply[6] = after < up_to and 1 or 0
return reply
