#!lua flags=allow-oom
--[[
Purpose
    Remove rows that find_due has returned, if they still have the same sequence and retention still allows it. Each
    call also removes some records of producers that have not appended for long.
KEYS
    [1-7]  state, order, times, values, tombstones, in_flight, producers
ARGV
    [1]  policy          delete, acked_only or compact, for a queue without its own retention
    [2]  retention_ms    0 or more
    [3]  tombstone_ms    0 or more
    [4]  override        1: the three above also for a queue with its own retention; else 0
    [5]  producer_ms     age at which records of producers are removed; empty: all stay
    [6]  now             ms; empty: the server's clock
    [7+] rows            two per row: key, sequence; at most 200 rows, and none is fine
Returns
    {deleted, unacked, tombstones, bytes, kept, producers, live, next_due_ms, *stayed}  rows removed; how many of
                         them were not acknowledged; how many were tombstones; bytes of their keys and values; rows
                         that stayed; records of producers removed; keys now; instant of the next collection, as in
                         find_due, -1 for never; the given sequence of each row that stayed
Errors
    INVALID  an argument breaks the rules above, or the retention that the queue was given does
Cost
    O(M log N) for M rows and N keys; about 5 us per row.
]]
--- @include "includes/instant"
--- @include "includes/note_lost"
--- @include "includes/note_removed"
--- @include "includes/remove_rows"
--- @include "includes/retention"

local ROWS_PER_CALL = 200
local PRODUCERS_PER_CALL = 50
local FIRST_ROW = 7

local state_key, values_key, in_flight_key, producers_key = KEYS[1], KEYS[4], KEYS[6], KEYS[7]
local keys = { order = KEYS[2], times = KEYS[3], tombstones = KEYS[5] }
local producer_text, now = ARGV[5], instant(ARGV[6] or '-')
local count = (#ARGV - FIRST_ROW + 1) / 2
local producer_ms = producer_text ~= '' and integer(producer_text)
if #KEYS ~= 7 or count < 0 or count % 1 ~= 0 or count > ROWS_PER_CALL then
    return redis.error_reply('INVALID 7 keys, 6 arguments and at most ' .. ROWS_PER_CALL .. ' rows are expected')
end
if producer_text ~= '' and (not producer_ms or producer_ms < 0) then
    return redis.error_reply('INVALID producer_ms is neither empty nor an integer of 0 or more')
end
local names, wanted, seen = {}, {}, {}
for index = 1, count do
    local key, sequence = ARGV[FIRST_ROW + 2 * index - 2], integer(ARGV[FIRST_ROW + 2 * index - 1])
    if not sequence then
        return redis.error_reply('INVALID sequence of row ' .. index .. ' is not an integer')
    end
    if not seen[key] then
        seen[key] = true
        names[#names + 1] = key
        wanted[#wanted + 1] = sequence
    end
end
local fields = redis.call(
    'HMGET', state_key, 'retention_policy', 'retention_ms', 'tombstone_ms', 'acked', 'sent', 'bytes',
    'last_lost_sequence', 'producers_cursor', 'last_removed_sequence'
)
local rules, problem = retention_of(fields, ARGV[4], ARGV[1], ARGV[2], ARGV[3], now)
if not rules then
    return redis.error_reply('INVALID ' .. problem)
end

local going, staying, bytes, unacked, tombstones = {}, {}, 0, 0, 0
local last_lost, last_removed = tonumber(fields[7] or '0'), 0
if #names > 0 then
    local acked, sent = tonumber(fields[4] or '0'), tonumber(fields[5] or '0')
    local scores = redis.call('ZMSCORE', keys.order, unpack(names))
    local instants = redis.call('ZMSCORE', keys.times, unpack(names))
    local marks = redis.call('ZMSCORE', keys.tombstones, unpack(names))
    for place, key in ipairs(names) do
        local sequence, ms = tonumber(scores[place] or '-1'), instants[place]
        local is_named = sequence == wanted[place] and ms
        local acknowledged = is_named and is_acked(in_flight_key, sequence, acked, sent)
        if is_named and is_due(rules, ms + 0, marks[place] and true, acknowledged) then
            going[#going + 1], last_removed = key, math.max(last_removed, sequence)
            bytes = bytes + #key + redis.call('HSTRLEN', values_key, key)
            tombstones = tombstones + (marks[place] and 1 or 0)
            if not acknowledged then
                unacked = unacked + 1
                last_lost = math.max(last_lost, sequence)
            end
        else
            staying[#staying + 1] = wanted[place]
        end
    end
end
local live = redis.call('ZCARD', keys.order) - #going
keys.has_tombstones = redis.call('ZCARD', keys.tombstones) > tombstones
if #going > 0 then
    remove_rows(keys.order, keys.times, values_key, keys.tombstones, going)
    redis.call('HSET', state_key, 'bytes', string.format('%.0f', tonumber(fields[6] or '0') - bytes))
    redis.call('HINCRBY', state_key, 'expired', #going - tombstones)
    redis.call('HINCRBY', state_key, 'tombstones_collected', tombstones)
end
note_lost(state_key, 'expired_unacked', unacked, last_lost)
note_removed(state_key, fields[9], last_removed)

local forgotten = {}
if producer_ms and redis.call('EXISTS', producers_key) == 1 then
    local page = redis.call('HSCAN', producers_key, fields[8] or '0', 'COUNT', PRODUCERS_PER_CALL)
    for place = 1, #page[2], 2 do
        local ms = string.match(page[2][place + 1], ' (%d+)$')
        if #forgotten < ROWS_PER_CALL and ms and ms + 0 < now - producer_ms then
            forgotten[#forgotten + 1] = page[2][place]
        end
    end
    if #forgotten > 0 then
        redis.call('HDEL', producers_key, unpack(forgotten))
    end
    redis.call('HSET', state_key, 'producers_cursor', page[1])
end
return {
    #going, unacked, tombstones, bytes, count - #going, #forgotten, live,
    live > 0 and next_due_ms(rules, keys, now) or -1, unpack(staying),
}
