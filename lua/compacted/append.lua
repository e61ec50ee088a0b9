#!lua
--[[
Purpose
    Append entries to a queue, all or none of them; the newest value of a key replaces the one before.
KEYS
    [1-8]  state, order, times, values, tombstones, in_flight, wake, producers
ARGV
    [1]  max_keys        keys that the queue may hold; 0: any number
    [2]  max_bytes       bytes of keys and values that it may hold; 0: any number
    [3]  policy          when it is full: reject, or drop_oldest
    [4]  producer        name of a producer that numbers its appends; empty: none, and the number is ignored
    [5]  number          number of this append, 0 or more; grows. A colon and a digest of its entries may follow
    [6]  now             ms; empty: the server's clock
    [7+] entries         four per entry: key, record, 1 for a tombstone or else 0, expected_sequence that the key has
                         before this call (0: the key is not there, empty: whatever it has)
Returns
    "first_sequence live evicted evicted_unacked is_consumed is_first *replaced"  numbers in one text, as a list
                         costs more than most commands in here: sequence of the first entry, from which the others
                         count up; keys now; entries that were evicted to make room, and how many of them were not
                         acknowledged; 1 while a consumer's lease runs; 1 when nothing was appended to this queue
                         before; per entry the sequence that it replaced, 0 for none
    {"replayed", first_sequence, last_sequence}  the producer has made this append before; nothing was written
    {"forgotten"}        the producer has made an append with a greater number; nothing was written
Errors
    INVALID   an argument breaks the rules above, or sequences have reached 2^53
    LAYOUT    the queue was written by a later version
    REUSED    the producer has made an append of this number with other entries; nothing was written
    CONFLICT  a key has another sequence than the expected one; nothing was written
    FULL      the queue would exceed its limits; nothing was written. An append that does not enlarge it is accepted
Cost
    O(M log N) for M entries and N keys, and O(E log N) for E that are evicted, at most 800 per call: a queue that is
    still over its limits continues to shrink with the next calls. About 25 us for one entry, 6 us per entry of 256 B in
    large calls. At most 200 entries.
]]
--- @include "includes/integers"

-- An append of one entry is the most frequent call, so this script avoids work: every command, table and function of an
-- include costs time, whether it is needed or not.

local ENTRIES_PER_CALL = 200
local FIRST_ENTRY = 7
local MAX_INTEGER = 9007199254740992

local state_key, order_key, times_key, values_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local max_keys, max_bytes, policy, producer = integer(ARGV[1]), integer(ARGV[2]), ARGV[3], ARGV[4]
local count = (#ARGV - FIRST_ENTRY + 1) / 4

-- Validation: nothing is written before all of it has passed.

if #KEYS ~= 8 or count < 1 or count % 1 ~= 0 then
    return redis.error_reply('INVALID 8 keys, 6 arguments and 4 per entry are expected')
end
if count > ENTRIES_PER_CALL then
    return redis.error_reply('INVALID a call takes at most ' .. ENTRIES_PER_CALL .. ' entries')
end
if not max_keys or max_keys < 0 or not max_bytes or max_bytes < 0 then
    return redis.error_reply('INVALID a limit is not an integer of 0 or more')
end
if policy ~= 'reject' and policy ~= 'drop_oldest' then
    return redis.error_reply('INVALID policy is neither reject nor drop_oldest')
end
local now
if ARGV[6] == '' then
    -- As includes/time does.
    local time = redis.call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
else
    now = integer(ARGV[6])
    if not now or now < 0 then
        return redis.error_reply('INVALID now is neither empty nor an integer of 0 or more')
    end
end
local keys = count > 1 and {}
local has_condition, has_tombstone = false, false
for index = 1, count do
    local at = FIRST_ENTRY + 4 * index - 4
    local flag, expected = ARGV[at + 2], ARGV[at + 3]
    if keys then
        keys[index] = ARGV[at]
    end
    if flag == '1' then
        has_tombstone = true
    elseif flag ~= '0' then
        return redis.error_reply('INVALID mark of a tombstone of entry ' .. index .. ' is neither 0 nor 1')
    end
    if expected ~= '' then
        has_condition = true
        local sequence = integer(expected)
        if not sequence or sequence < 0 then
            return redis.error_reply('INVALID expected sequence of entry ' .. index .. ' is not 0 or a sequence')
        end
    end
end
local number_text, digest
if producer ~= '' then
    number_text, digest = string.match(ARGV[5], '^(%d+):?(%x*)$')
    local given = integer(number_text)
    if not given or given < 0 then
        return redis.error_reply('INVALID number of the append is not an integer of 0 or more')
    end
    local record = redis.call('HGET', KEYS[8], producer)
    if record then
        -- Earlier versions have noted no digest.
        local last_number, first_sequence, last_sequence, last_digest = string.match(
            record, '^(%d+) (%d+) (%d+) %d*:?(%x*)'
        )
        if last_number + 0 > given then
            return { 'forgotten' }
        end
        if last_number + 0 == given then
            if digest ~= '' and last_digest ~= '' and digest ~= last_digest then
                return redis.error_reply('REUSED the producer has made another append with number ' .. number_text)
            end
            return { 'replayed', first_sequence + 0, last_sequence + 0 }
        end
    end
end

local fields = redis.call(
    'HMGET', state_key, 'version', 'sequence', 'bytes', 'last_ms', 'appended', 'compacted', 'session',
    'lease_until_ms', 'largest_bytes'
)
if fields[1] and fields[1] ~= '1' then
    return redis.error_reply('LAYOUT the queue has layout ' .. fields[1])
end
local sequence, create = fields[2] and fields[2] + 0, nil
if not sequence then
    --- @include "includes/create_queue"
    sequence, create = highest_sequence(order_key), create_queue
end
if sequence > MAX_INTEGER - count then
    return redis.error_reply('INVALID sequences of the queue have reached 2^53')
end
local current = keys and redis.call('ZMSCORE', order_key, unpack(keys))
    or { redis.call('ZSCORE', order_key, ARGV[FIRST_ENTRY]) }
if has_condition then
    for index = 1, count do
        local expected = ARGV[FIRST_ENTRY + 4 * index - 1]
        if expected ~= '' and expected ~= (current[index] or '0') then
            return redis.error_reply(
                'CONFLICT entry ' .. index .. ' has sequence ' .. (current[index] or '0') .. ', not ' .. expected
            )
        end
    end
end

-- Numbers in the queue's fields are read before the first write, so that a bad one cannot stop the script after it.
local last_ms, appended = tonumber(fields[4] or '0'), tonumber(fields[5] or '0')
local old_compacted = tonumber(fields[6] or '0')
local old_acked, old_sent, last_lost = 0, 0, 0
local drops_oldest = policy == 'drop_oldest'
if drops_oldest then
    local cursor = redis.call('HMGET', state_key, 'acked', 'sent', 'last_lost_sequence')
    old_acked, old_sent, last_lost = tonumber(cursor[1] or '0'), tonumber(cursor[2] or '0'), tonumber(cursor[3] or '0')
end
local has_session = fields[7] and fields[7] ~= ''
local is_consumed = has_session and tonumber(fields[8] or '0') > now and '1' or '0'
local ms_text = now > last_ms and string.format('%d', now) or fields[4] or '0'
local live, old_bytes = redis.call('ZCARD', order_key), tonumber(fields[3] or '0')
-- A queue that an earlier version has filled has no record of the sizes of its values.
local old_largest = fields[9] and fields[9] + 0 or live == 0 and 0

-- Contents of the queue after this call. If a key comes twice, the last entry stays and replaces the one before.
local bytes, batch_bytes, new_keys, batch_keys, compacted, largest = old_bytes, 0, 0, 0, 0, old_largest or 0
local places, contents, order, times, replaced, replaced_keys
if keys then
    places, contents, order, times, replaced = {}, {}, {}, {}, {}
end
local value, text, replaced_text
for index = 1, count do
    local at = FIRST_ENTRY + 4 * index - 4
    local key = ARGV[at]
    text, replaced_text = string.format('%d', sequence + index), current[index] or '0'
    value = text .. ' ' .. ARGV[at + 2] .. ' ' .. ARGV[at + 1]
    local size = #key + #value
    local earlier = places and places[key]
    if earlier then
        replaced_text = order[2 * earlier - 1]
        local gone = #key + #contents[2 * earlier]
        bytes, batch_bytes, compacted = bytes - gone, batch_bytes - gone, compacted + 1
    elseif current[index] then
        bytes, compacted = bytes - #key - redis.call('HSTRLEN', values_key, key), compacted + 1
        batch_keys = batch_keys + 1
        replaced_keys = replaced_keys or {}
        replaced_keys[#replaced_keys + 1] = key
    else
        new_keys, batch_keys = new_keys + 1, batch_keys + 1
    end
    bytes, batch_bytes = bytes + size, batch_bytes + size
    if size > largest then
        largest = size
    end
    if places then
        places[key], replaced[index] = index, replaced_text
        contents[2 * index - 1], contents[2 * index] = key, value
        order[2 * index - 1], order[2 * index] = text, key
        times[2 * index - 1], times[2 * index] = ms_text, key
    end
end
live = live + new_keys
local has_too_many = max_keys > 0 and live > max_keys and new_keys > 0
local is_too_large = max_bytes > 0 and bytes > max_bytes and bytes > old_bytes
if drops_oldest then
    has_too_many = max_keys > 0 and batch_keys > max_keys
    is_too_large = max_bytes > 0 and batch_bytes > max_bytes
end
if has_too_many or is_too_large then
    return redis.error_reply('FULL ' .. string.format(
        'the queue would hold %.0f keys and %.0f bytes: %.0f and %.0f are the limits (0: none)',
        live, bytes, max_keys, max_bytes
    ))
end

-- Writing: the first write is one that a full server refuses; removals come last.

local first_text = order and order[1] or text
if keys then
    redis.call('HSET', values_key, unpack(contents))
else
    redis.call('HSET', values_key, ARGV[FIRST_ENTRY], value)
end
if create then
    create(state_key, sequence)
end
if old_largest and largest > old_largest then
    redis.call('HSET', state_key, 'largest_bytes', string.format('%d', largest))
end
if keys then
    redis.call('ZADD', order_key, unpack(order))
    redis.call('ZADD', times_key, unpack(times))
else
    redis.call('ZADD', order_key, text, ARGV[FIRST_ENTRY])
    redis.call('ZADD', times_key, ms_text, ARGV[FIRST_ENTRY])
end
-- Keys that are no longer tombstones, or were removed, leave the index with the last command on it: while a cluster
-- moves a slot, a script must not touch a key again that it has emptied.
local unmarked
if replaced_keys then
    for _, key in ipairs(replaced_keys) do
        local index = places and places[key] or 1
        if ARGV[FIRST_ENTRY + 4 * index - 2] == '0' then
            unmarked = unmarked or {}
            unmarked[#unmarked + 1] = key
        end
    end
end
if has_tombstone then
    local marks = {}
    for index = 1, count do
        local at = FIRST_ENTRY + 4 * index - 4
        if ARGV[at + 2] == '1' and not (places and places[ARGV[at]] ~= index) then
            marks[#marks + 1] = order and order[2 * index - 1] or text
            marks[#marks + 1] = ARGV[at]
        end
    end
    if #marks > 0 then
        redis.call('ZADD', KEYS[5], unpack(marks))
    end
end

local evicted_text = ' 0 0 '
if drops_oldest then
    local evicted, unacked = 0, 0
    --- @include "includes/is_acked"
    --- @include "includes/note_lost"
    local EVICTIONS_PER_CALL = 800
    local EVICTIONS_AT_ONCE = 100
    local function is_over()
        return (max_keys > 0 and live > max_keys) or (max_bytes > 0 and bytes > max_bytes)
    end
    while is_over() and evicted < EVICTIONS_PER_CALL do
        local oldest = redis.call('ZRANGE', order_key, '0', EVICTIONS_AT_ONCE - 1, 'WITHSCORES')
        local going = {}
        for place = 1, #oldest, 2 do
            local key, old = oldest[place], oldest[place + 1] + 0
            -- The entries of this call are the last ones and fit, unless the queue's recorded bytes are wrong: they
            -- must not be evicted before a consumer has seen them.
            if not is_over() or old > sequence then
                break
            end
            live, bytes = live - 1, bytes - #key - redis.call('HSTRLEN', values_key, key)
            if not is_acked(KEYS[6], old, old_acked, old_sent) then
                unacked, last_lost = unacked + 1, math.max(last_lost, old)
            end
            going[#going + 1] = key
            unmarked = unmarked or {}
            unmarked[#unmarked + 1] = key
        end
        if #going == 0 then
            break
        end
        evicted = evicted + #going
        redis.call('ZREM', order_key, unpack(going))
        redis.call('ZREM', times_key, unpack(going))
        redis.call('HDEL', values_key, unpack(going))
    end
    if evicted > 0 then
        redis.call('HINCRBY', state_key, 'evicted', evicted)
    end
    note_lost(state_key, 'evicted_unacked', unacked, last_lost)
    evicted_text = string.format(' %d %d ', evicted, unacked)
end
if unmarked then
    redis.call('ZREM', KEYS[5], unpack(unmarked))
end
local bytes_text, appended_text = string.format('%d', bytes), string.format('%d', appended + count)
if compacted > 0 then
    redis.call(
        'HSET', state_key, 'sequence', text, 'bytes', bytes_text, 'last_ms', ms_text, 'appended', appended_text,
        'compacted', string.format('%d', old_compacted + compacted)
    )
else
    redis.call('HSET', state_key, 'sequence', text, 'bytes', bytes_text, 'last_ms', ms_text, 'appended', appended_text)
end
-- Written last, so that an append that was cut short does not count as done when it is repeated.
if producer ~= '' then
    redis.call('HSET', KEYS[8], producer, number_text .. ' ' .. first_text .. ' ' .. text .. ' ' .. count
        .. (digest ~= '' and ':' .. digest or '') .. ' ' .. ms_text)
end

-- A consumer that is late with its heartbeat is woken too.
if has_session then
    --- @include "includes/wake"
    wake(KEYS[7], text)
end
return first_text .. ' ' .. string.format('%d', live) .. evicted_text .. is_consumed .. (fields[5] and ' 0 ' or ' 1 ')
    .. (replaced and table.concat(replaced, ' ') or replaced_text)
