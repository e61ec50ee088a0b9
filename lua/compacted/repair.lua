#!lua
--[[
Purpose
    Repair what verify has found. A key whose value exists and names its own sequence is put back into its place; of any
    other key, all remains are removed. The numbers of the queue are corrected.
KEYS
    [1-6]  state, order, times, values, tombstones, in_flight
ARGV
    [1]  wrong_bytes     bytes that the queue recorded, as verify returned them; empty: they stay
    [2]  bytes           sum over all pages of verify's part order, which is set if the queue still records wrong_bytes;
                         empty together with it
    [3+] violations      two per violation: key and the key of a message, or in_flight and a member; at most 200
                         violations, and none is fine
Returns
    {indexed, dropped, strays, numbers}  keys put back into their places; keys that were removed; members of in_flight
                         removed, also those whose message has left its place; numbers of the queue that were changed
Errors
    INVALID  an argument breaks the rules above
    LAYOUT   the queue was written by a later version
Cost
    O(M log N) for M names and N keys; about 15 us per name.
]]
--- @include "includes/acked_up_to"
--- @include "includes/create_queue"
--- @include "includes/integers"
--- @include "includes/neighbour_ms"
--- @include "includes/note_largest"

local NAMES_PER_CALL = 200
local FIRST_ROW = 3

local state_key, order_key, times_key, values_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local tombstones_key, in_flight_key = KEYS[5], KEYS[6]
local wrong_bytes, right_bytes = ARGV[1], ARGV[2]
local count = (#ARGV - FIRST_ROW + 1) / 2
if #KEYS ~= 6 or count < 0 or count % 1 ~= 0 or count > NAMES_PER_CALL then
    return redis.error_reply('INVALID 6 keys, 2 numbers and at most ' .. NAMES_PER_CALL .. ' names are expected')
end
if (wrong_bytes == '') ~= (right_bytes == '') or (wrong_bytes ~= '' and (not integer(wrong_bytes)
    or not integer(right_bytes)))
then
    return redis.error_reply('INVALID bytes are neither two integers nor both empty')
end
for index = 1, count do
    local kind = ARGV[FIRST_ROW + 2 * index - 2]
    if kind ~= 'key' and kind ~= 'in_flight' then
        return redis.error_reply('INVALID name ' .. index .. ' is neither of a key nor of in_flight')
    end
end
local fields = redis.call(
    'HMGET', state_key, 'version', 'sequence', 'sent', 'acked', 'bytes', 'last_ms', 'largest_bytes'
)
if fields[1] and fields[1] ~= '1' then
    return redis.error_reply('LAYOUT the queue has layout ' .. fields[1])
end

local numbers = 0
if not fields[2] then
    create_queue(state_key, highest_sequence(order_key))
    numbers = 1
end
local last_ms = tonumber(fields[6] or '0')
local indexed, dropped, strays, largest = 0, 0, 0, 0
for index = 1, count do
    local name = ARGV[FIRST_ROW + 2 * index - 1]
    if ARGV[FIRST_ROW + 2 * index - 2] == 'in_flight' then
        local number, score = integer(name), redis.call('ZSCORE', in_flight_key, name)
        if score and (not number or number ~= score + 0) then
            strays = strays + redis.call('ZREM', in_flight_key, name)
        end
    else
        local value = redis.call('HGET', values_key, name)
        local sequence, flag = string.match(value or '', '^(%d+) ([01]) ')
        local is_free = sequence and integer(sequence) and integer(sequence) > 0
        if is_free then
            for _, other in ipairs(redis.call('ZRANGE', order_key, sequence, sequence, 'BYSCORE', 'LIMIT', '0', '2')) do
                is_free = is_free and other == name
            end
        end
        local old_sequence = redis.call('ZSCORE', order_key, name)
        if old_sequence and not (is_free and sequence == old_sequence) then
            -- A consumer cannot hold a message of this place any more.
            strays = strays + redis.call('ZREM', in_flight_key, old_sequence)
        end
        local was_there = redis.call('ZREM', order_key, name) + redis.call('ZREM', tombstones_key, name)
        if is_free then
            -- Instants rise with sequences, so the lost instant lies between those of the neighbours.
            local before = neighbour_ms(
                order_key, times_key, sequence, '-inf', 'BYSCORE', 'REV', 'LIMIT', '0', '1'
            ) or 0
            local behind = neighbour_ms(
                order_key, times_key, sequence, '+inf', 'BYSCORE', 'LIMIT', '0', '1'
            ) or math.max(last_ms, before)
            local ms = tonumber(redis.call('ZSCORE', times_key, name) or '0')
            redis.call('ZADD', order_key, sequence, name)
            redis.call('ZADD', times_key, string.format('%.0f', math.max(before, math.min(ms, behind))), name)
            if flag == '1' then
                redis.call('ZADD', tombstones_key, sequence, name)
            end
            indexed, largest = indexed + 1, math.max(largest, #name + #value)
        else
            local left = redis.call('ZREM', times_key, name) + redis.call('HDEL', values_key, name)
            dropped = dropped + math.min(1, left + was_there)
        end
    end
end

note_largest(state_key, fields[7], largest)

local function set_number(field, old, new)
    if old ~= new then
        redis.call('HSET', state_key, field, string.format('%.0f', new))
        numbers = numbers + 1
    end
end
local old_sequence, old_sent = tonumber(fields[2] or '0'), tonumber(fields[3] or '0')
local old_acked = tonumber(fields[4] or '0')
local sequence = math.max(old_sequence, highest_sequence(order_key))
local sent = math.min(old_sent, sequence)
local acked = math.min(old_acked, sent)
strays = strays + redis.call('ZREMRANGEBYSCORE', in_flight_key, '-inf', string.format('%.0f', acked))
strays = strays + redis.call('ZREMRANGEBYSCORE', in_flight_key, string.format('(%.0f', sent), '+inf')
local in_flight = redis.call('ZCARD', in_flight_key)
set_number('sequence', old_sequence, sequence)
set_number('sent', old_sent, sent)
set_number('acked', old_acked, acked_up_to(in_flight_key, in_flight, sent, acked))
if wrong_bytes ~= '' and (fields[5] or '0') == wrong_bytes then
    set_number('bytes', integer(wrong_bytes), integer(right_bytes))
end
return { indexed, dropped, strays, numbers }
