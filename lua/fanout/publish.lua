#!lua
--[[
Purpose
    Store messages once, in order, for every member, for all messages or none: their ids go to the log, which members
    with a cursor read, and to the lists of the other members. A message for later goes to the same members, waits
    beside their lists until its instant, and its ttl counts from there. While the queue has no member, messages are
    held for consumers that adopt them; if too many are held, the oldest expired ones are removed. Every sixteenth
    message also removes up to 32 expired ones. If the server can do it, a payload has its own expiry, unless the caller
    gives the time.
KEYS
    [1-2]  state, messages
    [3]  references      id -> consumers that owe an ack; the list of held messages counts as one
    [4-9]  expiries, held, remembered, deduplications, log, cursors
    [10+] consumer_keys  per named consumer: its wakes, details, delayed set, and the ready lists of all its lanes; the
                         lane of a message is order_hash modulo lanes
ARGV
    [1]  membership      number of the membership that the caller knows; 0 for an unknown queue
    [2]  to              empty for all members; else the name of the one member that the keys are of
    [3]  now_ms          instant; empty: the server's time
    [4]  consumers       number of consumers that are named: the members without a cursor, or all of them if a message
                         says when it is due
    [5+] values          a pair per consumer: name, options as the membership has them; then six per message: ttl_ms,
                         order_hash (an integer of 0 or more), deduplication id or empty, longest time in ms to
                         remember that or empty, when it is due, record. Due is empty for at once, a number for an
                         instant, or a plus and a number of ms from now
Returns
    {dropped, *messages(id, consumers, is_duplicate)}  oldest messages that full consumers lost, in all; then three per
                         message: its id, number of consumers that get it (0: it is held), 1 when a message with this
                         id was published with its deduplication id to the same consumers before: nothing was stored
Errors
    INVALID      an argument breaks the rules above
    VERSION      the membership is another one; the sentence ends with its number
    FULL         a member has no room for these messages and its policy is to reject, or the largest number that it may
                 have wait for their time, or too many messages are held
    BEHIND       the one member that is to get these messages has more than 1,000 before them in the log: pull them
    NO_CONSUMER  the queue has no member, and its policy is to refuse
Cost
    O(M (N + log T)) for M messages, N named consumers and T messages in the queue; about 40 us for one message, 3 us
    per named consumer, 6 us per further message, on two busy cores. At most 100 messages, and 2,500 ids in lists.
]]
--- @include "includes/instant"
--- @include "includes/fanout_options"
--- @include "includes/fanout_release"
--- @include "includes/fanout_over"
--- @include "includes/fanout_field_expiry"
--- @include "includes/fanout_late"
--- @include "includes/fanout_unblock"
--- @include "includes/fanout_forget"
--- @include "includes/fanout_due"
--- @include "includes/fanout_wake"
--- @include "includes/fanout_pull"

local MESSAGES_PER_CALL = 100
local REFERENCES_PER_CALL = 2500
local HELD = 100000
local DEDUPLICATION_MS = 86400000
local HELD_LOOKED_AT = 500
local OVER_BYTES_PER_CALL = 100000
local MESSAGES_PER_TURN = 16
local FIRST_CONSUMER_KEY = 10
local FIRST_VALUE = 5
local VALUES_PER_MESSAGE = 6

local keys = {
    state = KEYS[1], messages = KEYS[2], references = KEYS[3], expiries = KEYS[4], log = KEYS[8], cursors = KEYS[9],
}
local held_key, remembered_key, deduplications_key = KEYS[5], KEYS[6], KEYS[7]
local membership, to, now, consumers = integer(ARGV[1]), ARGV[2], instant(ARGV[3]), integer(ARGV[4])
if not membership or not now or not consumers or consumers < 0 or #KEYS < FIRST_CONSUMER_KEY - 1 then
    return redis.error_reply('INVALID 9 keys or more, a membership, an instant and a number of consumers are expected')
end
local first_message = FIRST_VALUE + 2 * consumers
local count = (#ARGV - first_message + 1) / VALUES_PER_MESSAGE
if count < 1 or count % 1 ~= 0 or count > MESSAGES_PER_CALL or count * consumers > REFERENCES_PER_CALL then
    return redis.error_reply(
        'INVALID 2 arguments per consumer and 6 per message, 1 to ' .. MESSAGES_PER_CALL .. ', are expected'
    )
end
if to ~= '' and consumers ~= 1 then
    return redis.error_reply('INVALID one consumer is expected to be the only one')
end
-- Instants of messages for later, by position.
local due, is_for_later = {}, false
for index = first_message, #ARGV, VALUES_PER_MESSAGE do
    local ttl_ms, order_hash = integer(ARGV[index]), integer(ARGV[index + 1])
    if not ttl_ms or ttl_ms < 1 or not order_hash or order_hash < 0 then
        return redis.error_reply('INVALID life or order hash of a message is not an integer of 1, or 0, or more')
    end
    local remembered_ms = ARGV[index + 3]
    if remembered_ms ~= '' and (integer(remembered_ms) or 0) < 1 then
        return redis.error_reply('INVALID memory of a deduplication id is neither empty nor an integer of 1 or more')
    end
    if ARGV[index + 4] ~= '' then
        local delay = string.match(ARGV[index + 4], '^%+(.*)$')
        local given = integer(delay or ARGV[index + 4])
        if not given or given < 0 then
            return redis.error_reply('INVALID when a message is due is neither empty, an instant, nor + and ms')
        end
        local at = delay and now + given or given
        due[(index - first_message) / VALUES_PER_MESSAGE + 1] = at > now and at or nil
        is_for_later = true
    end
end
local fields = redis.call(
    'HMGET', keys.state, 'membership', 'next_id', 'members', 'when_nobody', 'max_held', 'deduplication_ms', 'published',
    'bytes', 'logged'
)
local next_id, members = tonumber(fields[2]) or 1, tonumber(fields[3]) or 0
if (tonumber(fields[1]) or 0) ~= membership then
    return redis.error_reply('VERSION the membership is now ' .. (fields[1] or 0))
end
if to == '' and (consumers > members or is_for_later and consumers < members) then
    return redis.error_reply('INVALID the queue has ' .. members .. ' members, and not those are named')
end
local receivers_of_all = to == '' and members or 1

-- Find out which messages are new, and which repeat an earlier one or one of this call.
local ids, receivers, is_duplicate = {}, {}, {}
local fresh, fresh_ids, in_line, later, by_deduplication_id = {}, {}, {}, {}, {}
for position = 1, count do
    local deduplication_id = ARGV[first_message + VALUES_PER_MESSAGE * (position - 1) + 2]
    local earlier = deduplication_id ~= '' and by_deduplication_id[deduplication_id]
    if earlier then
        ids[position], receivers[position], is_duplicate[position] = ids[earlier], receivers[earlier], 1
    else
        local name = deduplication_id ~= '' and to .. ':' .. deduplication_id
        local known = name and redis.call('HGET', deduplications_key, name)
        -- Expired deduplication ids are removed later; here they no longer count.
        local ends = known and redis.call('ZSCORE', remembered_key, name)
        if known and not (ends and tonumber(ends) <= now) then
            local id, number = string.match(known, '^(%d+) (%d+)$')
            ids[position], receivers[position], is_duplicate[position] = id, tonumber(number), 1
        else
            ids[position] = string.format('%d', next_id + #fresh)
            receivers[position], is_duplicate[position] = receivers_of_all, 0
            fresh[#fresh + 1] = position
            fresh_ids[#fresh] = ids[position]
            if due[position] then
                later[#later + 1] = due_score(due[position], ids[position])
                later[#later + 1] = ids[position]
            else
                in_line[#in_line + 1] = ids[position]
            end
        end
        by_deduplication_id[deduplication_id] = position
    end
end

-- Ids per list, and how many a bounded list has too many.
local push_keys, push_ids, push_lanes, wakes, drops = {}, {}, {}, {}, {}
local later_keys, count_of_later = {}, #later / 2
local reader, is_logged = nil, to == '' and members > 0
local parsed, at, without_cursor = {}, FIRST_CONSUMER_KEY, 0
for number = 1, consumers do
    local name, text = ARGV[FIRST_VALUE + 2 * number - 2], ARGV[FIRST_VALUE + 2 * number - 1]
    local options = parsed[text] or read_options(text)
    local first_ready = at + 3
    local next_at = options and first_ready + options.lanes
    if not options or not KEYS[next_at - 1] then
        return redis.error_reply('INVALID options of a consumer do not read, or keys of its lanes are missing')
    end
    parsed[text] = options
    wakes[number] = KEYS[at]
    local details_key, delayed_key = KEYS[at + 1], KEYS[at + 2]
    later_keys[number] = count_of_later > 0 and delayed_key or nil
    local has_cursor = redis.call('ZSCORE', keys.cursors, name)
    if has_cursor and to ~= '' then
        reader = {
            state = keys.state, log = keys.log, cursors = keys.cursors, details = details_key,
            ready = { unpack(KEYS, first_ready, next_at - 1) },
        }
        if (tonumber(fields[9]) or 0) - tonumber(has_cursor) > PULLED_PER_CALL then
            return redis.error_reply('BEHIND consumer ' .. to .. ' has more than 1000 messages in the log')
        end
    end
    if not has_cursor or to ~= '' then
        without_cursor = without_cursor + 1
        local first_push, lists = #push_keys + 1, {}
        for _, position in ipairs(fresh) do
            local order_hash = ARGV[first_message + VALUES_PER_MESSAGE * (position - 1) + 1]
            local lane = options.lanes == 1 and 1 or tonumber(order_hash) % options.lanes + 1
            if not lists[lane] then
                lists[lane] = options.lanes == 1 and in_line or {}
                local push = #push_keys + 1
                push_keys[push], push_ids[push], push_lanes[push] = KEYS[first_ready + lane - 1], lists[lane], lane
            end
            if options.lanes > 1 and not due[position] then
                table.insert(lists[lane], ids[position])
            end
        end
        if options.max_length > 0 and #fresh > 0 then
            -- Messages that wait for their time take room in each lane, and are not dropped.
            local delayed = redis.call('ZCARD', delayed_key) + count_of_later
            for push = first_push, #push_keys do
                local length = redis.call('LLEN', push_keys[push]) + #push_ids[push]
                local excess = length + delayed - options.max_length
                local is_refused = options.when_full == 'reject' or count_of_later > 0 and delayed > options.max_length
                if excess > 0 and is_refused then
                    return redis.error_reply('FULL consumer ' .. name .. ' has no room')
                end
                if excess > 0 then
                    -- A list that is too long shrinks gradually, and never becomes empty.
                    local count_of_drops = math.min(excess, 2 * (#push_ids[push] + count_of_later), length - 1)
                    if count_of_drops > 0 then
                        drops[#drops + 1] = {
                            key = push_keys[push], details = details_key, lane = push_lanes[push],
                            count = count_of_drops,
                        }
                    end
                end
            end
        end
    end
    at = next_at
end
if at ~= #KEYS + 1 then
    return redis.error_reply('INVALID there are more keys than consumers have')
end
is_logged = is_logged and without_cursor < members
-- Held ids that make room, and their expired messages that are still stored.
local unheld, held_over = 0, {}
if receivers_of_all == 0 and #fresh > 0 then
    if fields[4] == 'refuse' then
        return redis.error_reply('NO_CONSUMER nobody is registered with the queue')
    end
    local excess = redis.call('LLEN', held_key) + #fresh - (tonumber(fields[5]) or HELD)
    if excess > 0 then
        local oldest = redis.call('LRANGE', held_key, 0, HELD_LOOKED_AT - 1)
        for position, ends in ipairs(#oldest > 0 and redis.call('ZMSCORE', keys.expiries, unpack(oldest)) or {}) do
            if ends and tonumber(ends) > now then
                break
            end
            unheld = position
            held_over[#held_over + 1] = ends and oldest[position] or nil
        end
    end
    if excess > unheld then
        return redis.error_reply('FULL too many messages are held for consumers to come')
    end
    push_keys[1], push_ids[1] = held_key, fresh_ids
end

-- Stores ids and records, given alternately.
local function store(messages_key, values, expires_at)
    local ends_ms = expires_at and string.format('%d', tonumber(expires_at) + LATE_MS)
    local fields_of = #values / 2
    if ends_ms and redis.pcall('HSETEX', messages_key, 'PXAT', ends_ms, 'FIELDS', fields_of, unpack(values)) == 1 then
        return
    end
    redis.call('HSET', messages_key, unpack(values))
end

-- Adds the ids that are not for later to the log. If the server has lost the number that the log had reached, the entry
-- is refused, and the log itself tells the number.
local function add_to_log(reached)
    local words = {}
    for _, position in ipairs(fresh) do
        local order_hash = ARGV[first_message + VALUES_PER_MESSAGE * (position - 1) + 1]
        if not due[position] then
            words[#words + 1] = order_hash == '0' and ids[position] or ids[position] .. ':' .. order_hash
        end
    end
    local text = table.concat(words, ' ')
    if type(redis.pcall('XADD', keys.log, reached .. '-0', 'm', text)) == 'table' then
        local facts = redis.call('XINFO', 'STREAM', keys.log)
        for index = 1, #facts, 2 do
            if facts[index] == 'last-generated-id' then
                reached = string.format('%d', tonumber(string.match(facts[index + 1], '^%d+')) + #words)
            end
        end
        redis.call('XADD', keys.log, reached .. '-0', 'm', text)
        redis.call('HSET', keys.state, 'logged', reached)
    end
end

local dropped = 0
if #fresh > 0 then
    local stored, ends, records, bytes = {}, {}, {}, tonumber(fields[8]) or 0
    local owed = string.format('%d', math.max(receivers_of_all, 1))
    local logged = string.format('%d', (tonumber(fields[9]) or 0) + (is_logged and #in_line or 0))
    for number, position in ipairs(fresh) do
        local index = first_message + VALUES_PER_MESSAGE * (position - 1)
        local published = due[position] or now
        local expires_at = string.format('%d', published + tonumber(ARGV[index]))
        ends[2 * number - 1], ends[2 * number] = expires_at, ids[position]
        records[number] =
            string.format('%d:', published) .. expires_at .. ':' .. ARGV[index + 1] .. ':' .. ARGV[index + 5]
        bytes = bytes + #records[number]
    end
    redis.call(
        'HSET', keys.state, 'version', 1, 'next_id', string.format('%d', next_id + #fresh),
        'published', string.format('%d', (tonumber(fields[7]) or 0) + #fresh), 'bytes', string.format('%d', bytes),
        'logged', logged
    )
    -- If the caller gives the instant, the server's clock is not used.
    local has_own_expiry = HAS_FIELD_EXPIRY and ARGV[3] == ''
    local first = 1
    for number, position in ipairs(fresh) do
        local index = first_message + VALUES_PER_MESSAGE * (position - 1)
        if number == #fresh or ends[2 * number - 1] ~= ends[2 * number + 1] then
            local values = {}
            for each = first, number do
                values[#values + 1], values[#values + 2] = ends[2 * each], records[each]
            end
            store(keys.messages, values, has_own_expiry and ends[2 * number - 1])
            first = number + 1
        end
        stored[#stored + 1] = ids[position]
        stored[#stored + 1] = owed
        if ARGV[index + 2] ~= '' then
            -- A consumer's name has no colon.
            local name = to .. ':' .. ARGV[index + 2]
            local for_ms = math.min(tonumber(fields[6]) or DEDUPLICATION_MS, tonumber(ARGV[index + 3]) or math.huge)
            redis.call('HSET', deduplications_key, name, ids[position] .. ' ' .. receivers_of_all)
            redis.call('ZADD', remembered_key, string.format('%d', now + for_ms), name)
        end
    end
    redis.call('ZADD', keys.expiries, unpack(ends))
    redis.call('HSET', keys.references, unpack(stored))
    if reader then
        -- What the log has for this consumer comes before these messages.
        pull(reader, to, PULLED_PER_CALL)
    end
    if is_logged and #in_line > 0 then
        add_to_log(logged)
    end
    for push, key in ipairs(push_keys) do
        if #push_ids[push] > 0 then
            redis.call('RPUSH', key, unpack(push_ids[push]))
        end
    end
    for _, key in ipairs(later_keys) do
        redis.call('ZADD', key, unpack(later))
    end
    for _, key in ipairs(wakes) do
        wake(key)
    end
end

for _, drop in ipairs(drops) do
    local oldest = redis.call('LPOP', drop.key, drop.count)
    dropped = dropped + #oldest
    unblock(drop.details, drop.lane, oldest)
    redis.call('HDEL', drop.details, unpack(oldest))
    redis.call('HINCRBY', drop.details, 'dropped', #oldest)
    release(keys, oldest)
end
if dropped > 0 then
    redis.call('HINCRBY', keys.state, 'dropped', dropped)
end
if unheld > 0 then
    redis.call('LTRIM', held_key, unheld, -1)
    release(keys, {}, held_over)
end
-- More messages may be removed than added. Checking each time would cost as much as storing a reference.
local turns = math.floor((next_id + #fresh - 1) / MESSAGES_PER_TURN) - math.floor((next_id - 1) / MESSAGES_PER_TURN)
if turns > 0 then
    local instants, most = string.format('%d', now), 2 * MESSAGES_PER_TURN * turns
    local found = redis.call('ZRANGEBYSCORE', keys.expiries, '-inf', instants, 'WITHSCORES', 'LIMIT', 0, most)
    local over, bytes = {}, 0
    for index = 1, #found, 2 do
        bytes = bytes + redis.call('HSTRLEN', keys.messages, found[index])
        if index > 1 and bytes > OVER_BYTES_PER_CALL then
            break
        end
        local message = redis.call('HGET', keys.messages, found[index])
        if is_over(found[index + 1], string.match(message or '', '^%d+:(%d+):'), now) then
            over[#over + 1] = found[index]
        end
    end
    release(keys, {}, over)
end
-- More ids are removed than added, so that their number is bounded by the time for which they are remembered.
forget(remembered_key, deduplications_key, now, 2 * count)

local reply = { dropped }
for position = 1, count do
    reply[3 * position - 1] = ids[position]
    reply[3 * position] = receivers[position]
    reply[3 * position + 1] = is_duplicate[position]
end
return reply
