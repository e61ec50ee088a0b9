#!lua
--[[
Purpose
    Add messages to the end of a packed session; a repeated call adds them only once. The script gives out packet ids.
KEYS
    [1]  session   the session
ARGV
    [1]  heading   8 big-endian doubles: expiry of the key, 0 for never; earliest expiry of a message; bytes of the
                   largest record; 1 if a message expires within an hour by the caller's clock, then the server's clock
                   decides; messages that may stay; messages that the caller refused for their expiry interval, and that
                   it found expired, to be counted; number of this call within its batch, from 0
    [2]  epoch     of the session as the caller knows it; empty: the caller does not know owners
    [3]  source    source: and the name of what numbers the batches, in any bytes; empty: none
    [4]  offset    number of the batch, which grows; empty without a source
    [5]  given     empty, or "last:ids:free:next_ids:packet_ids:replaced" after a conflict: state that the caller has
                   seen, packet ids given out after this call, up to which number all following ones are free, packet
                   ids of the messages as a list with commas, and serials of expired messages that had one of them
    [6+] messages  records without their packet ids, each beginning with its expiry; none where the caller has refused
                   all messages of a batch, and they are to be counted
Returns
    "first_serial:first_packet_id:messages:trimmed:replaced:expired"  stored under serials that count up from
                   first_serial; messages of the session now; messages that were removed to keep the limit; expired
                   messages removed, as their packet ids were used again; positions of expired messages, which were
                   skipped, from 0, with commas
    {"replayed", first_serial, packet_ids, expired}  this call has been made before; nothing was written. Packet ids
                   as "first+count" or a list with commas
    {"forgotten"}  the source has saved a batch with a greater offset; nothing was written
    {"conflict"}   a packet id may be in use, or the state is not the one that the caller has seen; nothing was written
Errors
    INVALID    an argument breaks the rules above, or serials have reached 2^53
    NOT_OWNER  PostgreSQL owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(M) for M messages; about 5 us for a call of one message of 256 B, 1 us per message in large ones; 1 us for each
    that is trimmed. At most 256 messages, and 1,000 places of trimmed ones.
]]
local MESSAGES_PER_CALL = 256
local PLACES_PER_TRIM = 1000
local FIRST_ENTRY = 6
local HOUR_MS = 3600000
local PACKET_IDS = 65535
local MAX_INTEGER = 9007199254740992
--- @include "includes/packed_format"

-- Local, since a global is looked up by its name each time.
local struct, format, KEYS, ARGV = struct, string.format, KEYS, ARGV
local session_key, epoch, source, offset = KEYS[1], ARGV[2], ARGV[3], ARGV[4]
local count = #ARGV - FIRST_ENTRY + 1
if #KEYS ~= 1 or count < 0 or count > MESSAGES_PER_CALL or #ARGV[1] ~= 64 then
    return redis.error_reply('INVALID 1 key, a heading of 64 bytes, 4 arguments and at most 256 messages are expected')
end
local wanted_ms, soonest, longest, soon, limit, refused, over, chunk = struct.unpack('>dddddddd', ARGV[1])
for index = FIRST_ENTRY, #ARGV do
    if #ARGV[index] < 13 then
        return redis.error_reply('INVALID message ' .. index - FIRST_ENTRY + 1 .. ' is no record')
    end
end
if source ~= '' and not string.find(offset, '^%d+$') then
    return redis.error_reply('INVALID offset is not an integer of 0 or more')
end

local fields
if source == '' then
    fields = redis.call('HMGET', session_key, 's')
else
    fields = redis.call('HMGET', session_key, 's', source)
end
local before = redis.call('HLEN', session_key)
local last, ids, free, head, delivered, others, largest, earliest, until_ms, guarded, since, ahead, trimmed_so_far,
    expired_so_far, refused_so_far, quarantined
if fields[1] then
    last, ids, free, head, delivered, others, largest, earliest, until_ms, guarded, since, ahead, trimmed_so_far,
        expired_so_far, refused_so_far, quarantined = struct.unpack(STATE, fields[1])
else
    last, ids, free, head, delivered, others = -1, 0, 0, 0, -1, before + 1
    largest, earliest, until_ms = 0, 0, 0
    since, ahead, trimmed_so_far, expired_so_far, refused_so_far, quarantined = 0, 0, 0, 0, 0, 0
    before = before + 1
    guarded = before > 1 and 1 or 0
end
if guarded == 1 or epoch ~= '' then
    --- @include "includes/guard"
    local refused_reply = refusal(redis.call('HMGET', session_key, 'owner', 'import', 'epoch'), epoch)
    if refused_reply then
        return refused_reply
    end
end
before = before - others

-- The record of a source: its last offset, then ';chunk:first serial:packet ids:expired' for each chunk of it.
local record = offset
if fields[2] then
    local recorded = tonumber(string.match(fields[2], '^%d+'))
    if recorded > offset + 0 then
        return { 'forgotten' }
    end
    if recorded == offset + 0 then
        record = fields[2]
        local serial, told, positions = string.match(record, ';' .. format('%d', chunk) .. ':(%d+):([%d,+]*):([%d,]*)')
        if serial then
            return { 'replayed', tonumber(serial), told, positions }
        end
    end
end

local expired, live = nil, count
if soon == 1 then
    -- As includes/time does.
    local time = redis.call('TIME')
    local now = time[1] * 1000 + time[2] / 1000
    for index = 1, count do
        if struct.unpack('>d', ARGV[FIRST_ENTRY + index - 1]) <= now then
            expired = expired or {}
            expired[#expired + 1] = index - 1
            live = live - 1
        end
    end
end
local positions = expired and table.concat(expired, ',') or ''

local serial = last >= 0 and last or ids
local first_serial = serial + 1
if serial > MAX_INTEGER - count then
    return redis.error_reply('INVALID serials of the session have reached 2^53')
end

if before == 0 then
    head, free, largest, earliest = first_serial, ids + PACKET_IDS, 0, 0
end
local next_ids = ids + count
local packet_ids, replaced, told
if ARGV[5] ~= '' then
    local seen_last, seen_ids, next_free, list, gone
    seen_last, seen_ids, next_ids, next_free, list, gone =
        string.match(ARGV[5], '^(%-?%d+):(%d+):(%d+):(%d+):([%d,]+):([%d,]*)$')
    if not seen_last then
        return redis.error_reply('INVALID given is not last:ids:next_ids:free:packet_ids:replaced')
    end
    if seen_last + 0 ~= last or seen_ids + 0 ~= ids then
        return { 'conflict' }
    end
    packet_ids, replaced, told = {}, {}, list
    for packet_id in string.gmatch(list, '%d+') do
        packet_ids[#packet_ids + 1] = packet_id + 0
    end
    for number in string.gmatch(gone, '%d+') do
        if redis.call('HEXISTS', session_key, number) == 1 then
            replaced[#replaced + 1] = number
        end
    end
    if #packet_ids ~= count then
        return redis.error_reply('INVALID a packet id per message is expected')
    end
    next_ids, free = next_ids + 0, next_free + 0
elseif next_ids > free then
    return { 'conflict' }
end
local first_packet_id = packet_ids and packet_ids[1] or ids % PACKET_IDS + 1
if source ~= '' then
    record = record .. ';' .. format('%d', chunk) .. ':' .. format('%d', first_serial) .. ':'
        .. (told or format('%d+%d', first_packet_id, count)) .. ':' .. positions
end

if live == 0 then
    -- A session that has never stored anything gets no counts.
    if last >= 0 and (source ~= '' or refused > 0 or over > 0 or count > 0) then
        expired_so_far, refused_so_far = expired_so_far + count + over, refused_so_far + refused
        if source ~= '' and not fields[2] then
            others = others + 1
        end
        local state = struct.pack(
            STATE, last, ids, free, head, delivered, others, largest, earliest, until_ms, guarded, since, ahead,
            trimmed_so_far, expired_so_far, refused_so_far, quarantined
        )
        if source ~= '' then
            redis.call('HSET', session_key, 's', state, source, record)
        else
            redis.call('HSET', session_key, 's', state)
        end
    end
    return format('%d:0:%d:0:0:%s', first_serial, before, positions)
end

local values, at = { 's', '' }, 2
if source ~= '' then
    values[3], values[4], at = source, record, 4
    if not fields[2] then
        others = others + 1
    end
end
local passed = 1
for index = 1, count do
    if expired and expired[passed] == index - 1 then
        passed = passed + 1
    else
        serial = serial + 1
        local packet_id = packet_ids and packet_ids[index] or (ids + index - 1) % PACKET_IDS + 1
        values[at + 1] = format('%d', serial)
        values[at + 2] = struct.pack('>H', packet_id) .. ARGV[FIRST_ENTRY + index - 1]
        at = at + 2
    end
end

last = serial
if packet_ids or expired then
    since, ahead = last + 1, next_ids - last
elseif since == 0 or ids + 1 - first_serial ~= ahead then
    since, ahead = first_serial, ids + 1 - first_serial
end
ids = next_ids
if earliest == 0 or soonest < earliest then
    earliest = soonest
end
if longest > largest then
    largest = longest
end
local moved
if wanted_ms == 0 or (until_ms == -1 and before > 0) then
    moved = until_ms ~= -1
    until_ms = -1
elseif wanted_ms > until_ms then
    moved = true
    until_ms = math.min(math.ceil(wanted_ms / HOUR_MS) * HOUR_MS, MAX_INTEGER)
end
local gone = replaced and #replaced or 0
expired_so_far, refused_so_far = expired_so_far + count - live + over + gone, refused_so_far + refused

local messages = before + live - gone
local trims = messages > limit and delivered < head and gone == 0
if trims then
    -- Expired messages go first, and the caller finds them.
    local time = redis.call('TIME')
    trims = time[1] * 1000 + time[2] / 1000 < earliest
end
values[2] = struct.pack(
    STATE, last, ids, free, head, delivered, others, largest, earliest, until_ms, guarded, since, ahead,
    trimmed_so_far, expired_so_far, refused_so_far, quarantined
)
-- This write comes first, as a full server refuses it.
redis.call('HSET', session_key, unpack(values))
if moved and until_ms == -1 then
    redis.call('PERSIST', session_key)
elseif moved then
    redis.call('PEXPIREAT', session_key, format('%d', until_ms))
end
local trimmed = 0
if trims then
    local excess, places = messages - limit, PLACES_PER_TRIM
    while excess > trimmed and head <= last and places > 0 do
        local size = math.min(excess - trimmed, last - head + 1, places)
        local serials = {}
        for index = 1, size do
            serials[index] = format('%d', head + index - 1)
        end
        trimmed = trimmed + redis.call('HDEL', session_key, unpack(serials))
        head, places = head + size, places - size
    end
    values[2] = struct.pack(
        STATE, last, ids, free, head, delivered, others, largest, earliest, until_ms, guarded, since, ahead,
        trimmed_so_far + trimmed, expired_so_far, refused_so_far, quarantined
    )
    redis.call('HSET', session_key, 's', values[2])
end
if gone > 0 then
    redis.call('HDEL', session_key, unpack(replaced))
end
return format('%d:%d:%d:%d:%d:%s', first_serial, first_packet_id, messages - trimmed, trimmed, gone, positions)
