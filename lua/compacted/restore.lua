#!lua
--[[
Purpose
    Put rows back that collect has removed, if their keys do not exist now. Each row gets its old place: it is delivered
    if the cursor has not passed that place, otherwise after a rewind.
KEYS
    [1-5]  state, order, times, values, tombstones
ARGV
    [1]  incarnation     of the queue that the rows belong to; empty: unknown
    [2+] rows            four per row: key, sequence, ms, value as find_due returned them; at most 200 rows
Returns
    {restored, present, refused, to_deliver}  rows put back; rows whose key exists; rows that do not fit into this
                         queue: their sequence is taken or was never given out, their instant is not between those of
                         their neighbours, or their value is damaged; restored rows that the cursor has not passed
Errors
    INVALID        an argument breaks the rules above
    STALE          the queue has another incarnation than the rows
    UNKNOWN_QUEUE  there is no such queue
Cost
    O(M log N) for M rows and N keys; about 15 us per row.
]]
--- @include "includes/integers"
--- @include "includes/neighbour_ms"
--- @include "includes/note_largest"

local ROWS_PER_CALL = 200
local FIRST_ROW = 2

local state_key, order_key, times_key, values_key, tombstones_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local incarnation = ARGV[1]
local count = (#ARGV - FIRST_ROW + 1) / 4
if #KEYS ~= 5 or count < 1 or count % 1 ~= 0 or count > ROWS_PER_CALL then
    return redis.error_reply('INVALID 5 keys, an incarnation and 1 to ' .. ROWS_PER_CALL .. ' rows are expected')
end
for index = 1, count do
    local at = FIRST_ROW + 4 * index - 4
    local sequence, ms = integer(ARGV[at + 1]), integer(ARGV[at + 2])
    if not sequence or sequence < 1 or not ms or ms < 0 then
        return redis.error_reply('INVALID row ' .. index .. ' has no sequence or no instant')
    end
end
local fields = redis.call(
    'HMGET', state_key, 'incarnation', 'sequence', 'sent', 'bytes', 'last_ms', 'largest_bytes'
)
if not fields[1] then
    return redis.error_reply('UNKNOWN_QUEUE there is no such queue')
end
if incarnation ~= '' and incarnation ~= fields[1] then
    return redis.error_reply('STALE the queue is another than the one that the rows are of')
end

local highest, sent, bytes, last_ms = fields[2] + 0, fields[3] + 0, fields[4] + 0, fields[5] + 0
local restored, present, refused, to_deliver, largest = 0, 0, 0, 0, 0
for index = 1, count do
    local at = FIRST_ROW + 4 * index - 4
    local key, sequence, ms, value = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    if redis.call('ZSCORE', order_key, key) then
        present = present + 1
    else
        local before = neighbour_ms(order_key, times_key, sequence, '-inf', 'BYSCORE', 'REV', 'LIMIT', '0', '1') or 0
        local behind = neighbour_ms(
            order_key, times_key, '(' .. sequence, '+inf', 'BYSCORE', 'LIMIT', '0', '1'
        ) or last_ms
        local is_taken = redis.call('ZCOUNT', order_key, sequence, sequence) > 0
        local is_damaged = string.match(value, '^(%d+) [01] ') ~= sequence
        if is_damaged or is_taken or sequence + 0 > highest or ms + 0 < before or ms + 0 > behind then
            refused = refused + 1
        else
            redis.call('HSET', values_key, key, value)
            redis.call('ZADD', order_key, sequence, key)
            redis.call('ZADD', times_key, ms, key)
            if string.sub(value, #sequence + 2, #sequence + 2) == '1' then
                redis.call('ZADD', tombstones_key, sequence, key)
            end
            restored, bytes = restored + 1, bytes + #key + #value
            largest = math.max(largest, #key + #value)
            to_deliver = to_deliver + (sequence + 0 > sent and 1 or 0)
        end
    end
end
if restored > 0 then
    redis.call('HSET', state_key, 'bytes', string.format('%.0f', bytes))
    redis.call('HINCRBY', state_key, 'restored', restored)
    note_largest(state_key, fields[6], largest)
end
return { restored, present, refused, to_deliver }
