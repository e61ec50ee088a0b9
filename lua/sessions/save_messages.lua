#!lua
--[[
Purpose
    Store messages behind all others of a session, once however often the call is repeated.
KEYS
    [1]  messages        sorted set of references
    [2]  last_packet_id  packet id given out last
    [3]  session         fields of the session
    [4+] payload         one key per message, named by the packet id that it gets, in the order of the pairs
ARGV
    [1]  expected           last packet id that the caller knows; empty: the key is absent
    [2]  last_packet_id     packet id of the last message, 1 to 65535
    [3]  source             who numbers the batches; empty for nobody: the next three are not looked at then
    [4]  offset             number of the batch, 0 or more; grows
    [5]  chunk              number of this call within the batch, from 0
    [6]  packet_ids         what to answer to a repeated call: digits, commas and hyphens
    [7]  session_expiry_ms  how long the session's keys outlive its last message; empty: for ever
    [8]  refused            messages of the batch that the caller refused, to be counted
    [9+] message            a pair per message: expires_at_ms, JSON
Returns
    {"saved", first_serial, references, expired, earliest_expiry_ms}  stored under serials that count up from
                      first_serial; members of the set now; positions of the messages whose life was over and that
                      were passed over, from 0, as text with commas; instant before which no message of the session
                      expires, as text, empty when unknown. When all had expired, the last packet id has not changed
    {"replayed", first_serial, packet_ids, expired}  this call has been made before; nothing was written
    {"forgotten"}     the source has saved a batch with a greater offset; nothing was written
    {"conflict", last_packet_id, position, ...}  the last packet id is this one and not the expected one, or else
                      the payload keys at these positions, from 0, are in use; nothing was written
Errors
    INVALID    an argument breaks the rules above, or serials have reached 2^53
    NOT_OWNER  PostgreSQL owns the session, or its import is not complete
Cost
    O(M log N) for M messages and N references; about 10 us per call and 2 us per message. At most 256 messages.
]]
--- @include "includes/integers"
--- @include "includes/last_packet_id"
--- @include "includes/ownership"
--- @include "includes/packet_ids"
--- @include "includes/session_counters"
--- @include "includes/time"

local MESSAGES_PER_CALL = 256
local FIRST_PAYLOAD = 4
local FIRST_PAIR = 9
local HOUR_MS = 3600000
local MAX_INTEGER = 9007199254740992

local messages_key, last_packet_id_key, session_key = KEYS[1], KEYS[2], KEYS[3]
local expected, last_packet_id, source, packet_ids = ARGV[1], ARGV[2], ARGV[3], ARGV[6]
local count = #KEYS - FIRST_PAYLOAD + 1

-- Validation: nothing is written before all of it has passed.

if count < 1 or #ARGV ~= FIRST_PAIR - 1 + 2 * count then
    return redis.error_reply('INVALID 3 keys and a key per message, 8 arguments and 2 per message are expected')
end
if count > MESSAGES_PER_CALL then
    return redis.error_reply('INVALID a call takes at most ' .. MESSAGES_PER_CALL .. ' messages')
end
if not is_last_packet_id(expected) or not is_last_packet_id(last_packet_id) then
    return redis.error_reply('INVALID last packet id is not an integer from 0 to 65535')
end
if last_packet_id == '' or last_packet_id == '0' then
    return redis.error_reply('INVALID packet id of the last message is not an integer from 1 to 65535')
end
local offset, chunk
if source ~= '' then
    offset, chunk = integer(ARGV[4]), integer(ARGV[5])
    if not offset or offset < 0 or not chunk or chunk < 0 then
        return redis.error_reply('INVALID offset or chunk is not an integer of 0 or more')
    end
    if string.find(packet_ids, '[^%d,-]') then
        return redis.error_reply('INVALID packet ids are not digits, commas and hyphens')
    end
end
local session_expiry_ms, refused = integer(ARGV[7]), integer(ARGV[8])
if ARGV[7] ~= '' and (not session_expiry_ms or session_expiry_ms < 0) then
    return redis.error_reply('INVALID session expiry is not an integer of 0 or more')
end
if not refused or refused < 0 then
    return redis.error_reply('INVALID number of refused messages is not an integer of 0 or more')
end

local now = now_ms()
local live, expired, seen = {}, {}, {}
local earliest, latest = MAX_INTEGER, 0
for index = 1, count do
    local key = KEYS[FIRST_PAYLOAD - 1 + index]
    local expires_at_ms = integer(ARGV[FIRST_PAIR + 2 * index - 2])
    if not expires_at_ms then
        return redis.error_reply('INVALID expiry of message ' .. index .. ' is not an integer')
    end
    if seen[key] then
        return redis.error_reply('INVALID payload key of message ' .. index .. ' comes twice')
    end
    seen[key] = true
    if expires_at_ms <= now then
        expired[#expired + 1] = index - 1
    else
        live[#live + 1] = index
        if expires_at_ms < earliest then
            earliest = expires_at_ms
        end
        if expires_at_ms > latest then
            latest = expires_at_ms
        end
    end
end

local source_field = 'source:' .. source
local fields = redis.call(
    'HMGET', session_key, 'owner', 'import', 'last_serial', 'delivered_serial', 'saved_last_packet_id', 'until_ms',
    'earliest_expiry_ms', source_field
)
if not takes_messages(fields[1], fields[2]) then
    return redis.error_reply('NOT_OWNER PostgreSQL owns the session, or its import is not complete')
end

-- The record of a source: its last offset, then ';chunk:first serial:packet ids:expired' for each chunk of it.
local record = fields[8]
if record then
    local recorded = tonumber(string.match(record, '^%d+'))
    if recorded > offset then
        return { 'forgotten' }
    end
    if recorded == offset then
        local serial, ids, positions = string.match(record, ';' .. ARGV[5] .. ':(%d+):([%d,-]*):([%d,]*)')
        if serial then
            return { 'replayed', tonumber(serial), ids, positions }
        end
    else
        record = ARGV[4]
    end
else
    record = ARGV[4]
end

local current = redis.call('GET', last_packet_id_key) or ''
if current ~= expected then
    return { 'conflict', current }
end
local references = redis.call('ZCARD', messages_key)
if references > 0 then
    local in_use = positions_in_use(messages_key, FIRST_PAYLOAD)
    if #in_use > 0 then
        return { 'conflict', current, unpack(in_use) }
    end
end

-- Another program that saved since our last save has moved the last packet id; what it wrote is not in our fields.
local ours = fields[5] == current
local serial = integer(fields[3] or '')
if not ours or not serial then
    local highest = integer(expected) or 0
    if references > 0 then
        highest = math.floor(tonumber(redis.call('ZRANGE', messages_key, '0', '0', 'REV', 'WITHSCORES')[2]))
    end
    serial = math.max(highest, serial or 0, integer(fields[4] or '') or 0)
end
if serial + #live > MAX_INTEGER then
    return redis.error_reply('INVALID serials of the session have reached 2^53')
end

local first_serial = serial + 1
local positions = table.concat(expired, ',')
if source ~= '' then
    record = string.format('%s;%d:%d:%s:%s', record, chunk, first_serial, packet_ids, positions)
end

-- Writing: SET comes first, or HINCRBY or HSET when all have expired. A full server refuses each of them.

local earliest_text = ours and fields[7] or ''
if #live > 0 then
    local scored = {}
    for position, index in ipairs(live) do
        local key = KEYS[FIRST_PAYLOAD - 1 + index]
        local at = FIRST_PAIR + 2 * index - 2
        redis.call('SET', key, ARGV[at + 1], 'PXAT', ARGV[at])
        scored[2 * position - 1] = string.format('%d', serial + position)
        scored[2 * position] = key
    end
    redis.call('ZADD', messages_key, unpack(scored))

    -- Messages of another program may live longer than we know. Then the keys stay until the set has been empty.
    local stored_until = fields[6]
    local old_until_ms = integer(stored_until or '')
    local until_ms
    if session_expiry_ms and (references == 0 or (ours and old_until_ms)) then
        until_ms = math.ceil((latest + session_expiry_ms) / HOUR_MS) * HOUR_MS
        until_ms = math.min(math.max(until_ms, old_until_ms or 0), MAX_INTEGER)
    end
    local until_text = until_ms and string.format('%d', until_ms) or 'never'
    if until_ms then
        redis.call('SET', last_packet_id_key, last_packet_id, 'PXAT', until_text)
    else
        redis.call('SET', last_packet_id_key, last_packet_id)
    end

    local changed = { 'last_serial', scored[#scored - 1], 'saved_last_packet_id', last_packet_id }
    if references == 0 or earliest < (integer(earliest_text) or 0) then
        earliest_text = string.format('%d', earliest)
    end
    if earliest_text ~= fields[7] then
        changed[#changed + 1], changed[#changed + 2] = 'earliest_expiry_ms', earliest_text
    end
    local moved = until_text ~= stored_until
    if moved then
        changed[#changed + 1], changed[#changed + 2] = 'until_ms', until_text
    end
    if source ~= '' then
        changed[#changed + 1], changed[#changed + 2] = source_field, record
    end
    redis.call('HSET', session_key, unpack(changed))

    if until_ms then
        -- A set that was empty was no key, and has no expiry yet.
        if moved or references == 0 then
            redis.call('PEXPIREAT', messages_key, until_text)
        end
        if moved then
            redis.call('PEXPIREAT', session_key, until_text)
        end
    elseif moved then
        redis.call('PERSIST', messages_key)
        redis.call('PERSIST', session_key)
    end
elseif source ~= '' and redis.call('EXISTS', session_key) == 1 then
    redis.call('HSET', session_key, source_field, record)
end
count_in_session(session_key, 'expired', #expired)
count_in_session(session_key, 'refused', refused)
return { 'saved', first_serial, references + #live, positions, earliest_text }
