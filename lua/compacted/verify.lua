#!lua flags=no-writes
--[[
Purpose
    Check a page of a queue for faults. All pages of all parts check the whole queue; changes by an append or a removal
    between two pages may be missed, and the bytes of the pages add up only if the queue does not change meanwhile. A
    violation may be returned twice.
KEYS
    [1-6]  state, order, times, values, tombstones, in_flight
ARGV
    [1]  part            state, order, times, values, tombstones or in_flight
    [2]  cursor          0 for the first page of a part, else the one of the page before
    [3]  limit           members to look at, 1 to 500; a small hash comes whole
    [4]  kinds           bytes with one of which every record must begin; empty: any
    [5]  headed          kinds that are followed by a head, with its length in four bytes before it; empty: none
Returns
    {next_cursor, looked_at, bytes, *violations(rule, key, sequence, head)}
                         0 after the last page; members of this page, in part values those of the hash with cursor 0,
                         else 0; in part order, bytes of keys and values, and in part state, the bytes that the queue
                         has recorded; then four per violation: name of the
                         rule, key or empty, sequence or -1, empty. Rules of order: missing_time, missing_value,
                         wrong_sequence (the value has another), unreadable (the record begins with none of the kinds,
                         or is shorter than its head), wrong_tombstone, duplicate_sequence, sequence_too_high,
                         time_disorder; of times, values and tombstones: dangling_time, dangling_value,
                         dangling_tombstone; of in_flight: stray_in_flight; of state: wrong_count, sent_too_high,
                         acked_too_high, acked_behind. The name head is not a rule: it returns the head of a record, for
                         the caller to judge
Errors
    INVALID  an argument breaks the rules above
Cost
    O(L log N) for a limit of L and N keys; in parts order and values, about 256 KB of values are read, or one larger
    value; about 5 us per member of 1 KB.
]]
--- @include "includes/hash_page"
--- @include "includes/integers"

local LIMIT = 500
local PAGE_BYTES = 262144

local state_key, order_key, times_key, values_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local tombstones_key, in_flight_key = KEYS[5], KEYS[6]
local part, cursor, limit, kinds, headed = ARGV[1], ARGV[2], integer(ARGV[3]), ARGV[4], ARGV[5]
if #KEYS ~= 6 or #ARGV ~= 5 or not limit or limit < 1 or limit > LIMIT
    or not string.find(cursor, part == 'values' and '^[%x/]+$' or '^%d+$')
then
    return redis.error_reply(
        'INVALID 6 keys, a part, a cursor, a limit to ' .. LIMIT .. ' and two sets of kinds are expected'
    )
end

local fields = redis.call('HMGET', state_key, 'sequence', 'sent', 'acked', 'bytes')
local sequence, sent, acked = tonumber(fields[1] or '0'), tonumber(fields[2] or '0'), tonumber(fields[3] or '0')
local reply = { '0', 0, 0 }
local function violation(rule, key, number, head)
    reply[#reply + 1] = rule
    reply[#reply + 1] = key or ''
    reply[#reply + 1] = number or -1
    reply[#reply + 1] = head or ''
end
-- Returns a page of a sorted set by rank.
local function page_of(key)
    local first = cursor + 0
    local members = redis.call(
        'ZRANGE', key, string.format('%.0f', first), string.format('%.0f', first + limit - 1), 'WITHSCORES'
    )
    reply[2] = #members / 2
    if reply[2] == limit then
        reply[1] = string.format('%.0f', first + limit)
    end
    return members
end

-- Returns the head of a record, or none if it would be longer than the record.
local function head_of(value, at)
    local first, second, third, last = string.byte(value, at, at + 3)
    local size = last and ((first * 256 + second) * 256 + third) * 256 + last
    return size and at + 3 + size <= #value and string.sub(value, at + 4, at + 3 + size)
end

if part == 'state' then
    local live = redis.call('ZCARD', order_key)
    if redis.call('ZCARD', times_key) ~= live or redis.call('HLEN', values_key) ~= live then
        violation('wrong_count')
    end
    if sent > sequence then
        violation('sent_too_high', '', sent)
    end
    if acked > sent then
        violation('acked_too_high', '', acked)
    end
    local lowest = redis.call('ZRANGE', in_flight_key, '0', '0', 'WITHSCORES')[2]
    if acked < (lowest and lowest - 1 or sent) then
        violation('acked_behind', '', acked)
    end
    reply[2], reply[3] = 1, tonumber(fields[4] or '0')
elseif part == 'order' then
    -- The row before the page is read, too, to compare its order and time.
    local before_score, before_ms = 0, 0
    if cursor ~= '0' then
        local before = redis.call(
            'ZRANGE', order_key, string.format('%.0f', cursor - 1), string.format('%.0f', cursor - 1), 'WITHSCORES'
        )
        before_score = tonumber(before[2] or '0')
        before_ms = before[1] and tonumber(redis.call('ZSCORE', times_key, before[1]) or '0') or 0
    end
    local rows = page_of(order_key)
    for place = 1, #rows, 2 do
        local key, score = rows[place], rows[place + 1] + 0
        local value, ms = redis.call('HGET', values_key, key), redis.call('ZSCORE', times_key, key)
        if not ms then
            violation('missing_time', key, score)
        else
            if ms + 0 < before_ms then
                violation('time_disorder', key, score)
            end
            before_ms = math.max(before_ms, ms + 0)
        end
        if not value then
            violation('missing_value', key, score)
        else
            local number, flag, kind, behind = string.match(value, '^(%d+) ([01]) (.?)()')
            if not number or number + 0 ~= score then
                violation('wrong_sequence', key, score)
            elseif kinds ~= '' and (kind == '' or not string.find(kinds, kind, 1, true)) then
                violation('unreadable', key, score)
            elseif kind ~= '' and string.find(headed, kind, 1, true) then
                local head = head_of(value, behind)
                violation(head and 'head' or 'unreadable', key, score, head)
            end
            local mark = redis.call('ZSCORE', tombstones_key, key)
            if (flag == '1') ~= (mark ~= false) or (mark and mark + 0 ~= score) then
                violation('wrong_tombstone', key, score)
            end
            reply[3] = reply[3] + #key + #value
        end
        if score == before_score then
            violation('duplicate_sequence', key, score)
        end
        if score > sequence then
            violation('sequence_too_high', key, score)
        end
        before_score = score
        if reply[3] > PAGE_BYTES and place + 1 < #rows then
            reply[1], reply[2] = string.format('%.0f', cursor + (place + 1) / 2), (place + 1) / 2
            break
        end
    end
elseif part == 'values' then
    -- A page of a hash is bounded in the size of its values: with large values it has fewer members.
    local mean_bytes = math.max(0, tonumber(fields[4] or '0')) / math.max(1, redis.call('HLEN', values_key))
    local count = math.max(1, math.min(limit, math.floor(PAGE_BYTES / math.max(1, mean_bytes))))
    local next_cursor, page = hash_page(values_key, cursor, string.format('%.0f', count))
    reply[1], reply[2] = next_cursor, cursor == '0' and redis.call('HLEN', values_key) or 0
    for place = 1, #page, 2 do
        if not redis.call('ZSCORE', order_key, page[place]) then
            violation('dangling_value', page[place])
        end
    end
elseif part == 'times' or part == 'tombstones' then
    local members = page_of(part == 'times' and times_key or tombstones_key)
    for place = 1, #members, 2 do
        if not redis.call('ZSCORE', order_key, members[place]) then
            violation(part == 'times' and 'dangling_time' or 'dangling_tombstone', members[place])
        end
    end
elseif part == 'in_flight' then
    local members = page_of(in_flight_key)
    for place = 1, #members, 2 do
        local number = integer(members[place])
        if not number or number ~= members[place + 1] + 0 or number <= acked or number > sent then
            violation('stray_in_flight', members[place], members[place + 1] + 0)
        end
    end
else
    return redis.error_reply('INVALID part is none of state, order, times, values, tombstones and in_flight')
end
return reply
