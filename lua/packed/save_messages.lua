#!lua
--[[
Purpose
    Add messages to the end of a packed session; a repeated call adds them only once. The script gives out packet ids.
KEYS
    [1]  session   the session
ARGV
    [1]  heading  doubles(until_ms, soonest_ms, largest, soon, limit, first_packet_id, has_more), big-endian: expiry
                  of the key, 0 for never; earliest expiry of a message; bytes of the largest record; 1 if a message
                  expires within an hour by the caller's clock, then the server's clock decides; messages that may stay;
                  packet id in the first message, from which on they count up, 0 if the caller knows none; 1 if the next
                  value is more
    [2+] values   first, if the heading says so, more as doubles(refused, over, chunk, epoch, offset, is_given):
                  messages that the caller refused for their expiry interval, and that it found expired, to be counted;
                  number of this call within its batch, from 0; epoch of the session as the caller knows it, -1 if the
                  caller does not know owners; offset, the number of the batch, which grows, -1 without a source; 1 if
                  there is given. With an offset, source: and the name of what numbers the batches, in any bytes. After
                  a conflict, given as "last:ids:next_ids:free:packet_ids:replaced": state that the caller has seen,
                  packet ids given out after this call, up to which number all following ones are free, packet ids of
                  the messages as a list with commas, and serials of expired messages that had one of them. Then the
                  messages: records with these packet ids, or those that the caller expects; none where the caller has
                  refused all messages of a batch, and they are to be counted
Returns
    first_serial   stored under serials that count up from this one, with the packet ids that the caller expects, within
                   the limit
    "first_serial:first_packet_id:messages:trimmed:replaced:expired"  otherwise: messages that the session has at most;
                   messages that were removed to keep the limit; expired messages removed, as their packet ids were used
                   again; positions of expired messages, which were skipped, from 0, with commas
    {"replayed", first_serial, packet_ids, expired}  this call has been made before; nothing was written. Packet ids
                   as "first+count" or a list with commas
    {"forgotten"}  the source has saved a batch with a greater offset; nothing was written
    {"conflict"}   a packet id may be in use, or the state is not the one that the caller has seen; nothing was written
Errors
    INVALID    an argument breaks the rules above, or serials have reached 2^53
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(M) for M messages; about 4 us for a call of one message of 256 B, 1 us per message in large ones; 1 us for each
    that is trimmed. At most 256 messages, and 1,000 places of trimmed ones.
]]
local MESSAGES_PER_CALL = 256
local PLACES_PER_TRIM = 1000
local FIRST_VALUE = 2
local HOUR_MS = 3600000
local PACKET_IDS = 65535
local MAX_INTEGER = 9007199254740992
--- @include "includes/packed_format"
--- @include "includes/packed_record"
local HOT, COLD, COLD_AT = '>dddddddddd', '>ddddddd', 81

-- Local, since a global is looked up by its name each time.
local struct, format, KEYS, ARGV = struct, string.format, KEYS, ARGV
local session_key, heading = KEYS[1], ARGV[1]
if #KEYS ~= 1 or not heading or #heading ~= 56 then
    return redis.error_reply('INVALID 1 key and a heading of 56 bytes are expected')
end
local wanted_ms, soonest, longest, soon, limit, expected, has_more = struct.unpack('>ddddddd', heading)
local refused, over, chunk, epoch, source, offset, given = 0, 0, 0, -1
local first_entry = FIRST_VALUE
if has_more == 1 then
    local is_given
    if #(ARGV[first_entry] or '') ~= 48 then
        return redis.error_reply('INVALID more of 48 bytes is expected')
    end
    refused, over, chunk, epoch, offset, is_given = struct.unpack('>dddddd', ARGV[first_entry])
    first_entry = first_entry + 1
    if offset >= 0 then
        source, first_entry = ARGV[first_entry], first_entry + 1
    end
    if is_given == 1 then
        given, first_entry = ARGV[first_entry], first_entry + 1
    end
end
local count = #ARGV - first_entry + 1
if count < 0 or count > MESSAGES_PER_CALL then
    return redis.error_reply('INVALID the source and what is given as the heading says, and at most 256 messages')
end

local known, remembered
if source then
    local fields = redis.call('HMGET', session_key, 's', source)
    known, remembered = fields[1], fields[2]
else
    known = redis.call('HGET', session_key, 's')
end
-- Most saves need the first ten numbers of the state, and change only three of them.
local last, ids, bound, free, largest, earliest, until_ms, guarded, since, ahead
local head, delivered, others, trimmed_so_far, expired_so_far, refused_so_far, quarantined
local changed = not known
if known then
    last, ids, bound, free, largest, earliest, until_ms, guarded, since, ahead = struct.unpack(HOT, known)
else
    last, ids, bound, free, largest, earliest, until_ms, since, ahead = -1, 0, MAX_INTEGER, 0, 0, 0, 0, 0, 0
    others = redis.call('HLEN', session_key) + 1
    head, delivered, trimmed_so_far, expired_so_far, refused_so_far, quarantined = 0, -1, 0, 0, 0, 0
    guarded = others > 1 and 1 or 0
end
-- Records a change for the other store; nothing without a mirror.
local note
if guarded == 1 or epoch >= 0 then
    --- @include "includes/guard"
    local owned = redis.call('HMGET', session_key, 'owner', 'import', 'epoch', 'mirror')
    local refused_reply = refusal(owned, epoch >= 0 and format('%d', epoch) or '')
    if refused_reply then
        return refused_reply
    end
    if owned[4] then
        --- @include "includes/outbox"
        note = note_change
    end
end

-- The record of a source: its last offset, then ';chunk:first serial:packet ids:expired' for each chunk of it.
local record
if source then
    record = format('%d', offset)
    local recorded = remembered and tonumber(string.match(remembered, '^%d+'))
    if remembered and recorded > offset then
        return { 'forgotten' }
    end
    if recorded == offset then
        record = remembered
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
        local message = ARGV[first_entry + index - 1]
        if #message >= HEAD_BYTES and struct.unpack('>d', message, 3) <= now then
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

-- Counting the messages takes a twelfth of a save: it is done where they may be too many, and where a session that has
-- none begins anew.
local next_ids = ids + count
local counts = bound + count > limit or next_ids > free or (until_ms == -1 and wanted_ms ~= 0)
local expired_now = count - live + over
if known and (counts or given or live == 0 or expired_now > 0 or refused > 0 or (source and not remembered)) then
    changed = true
    head, delivered, others, trimmed_so_far, expired_so_far, refused_so_far, quarantined =
        struct.unpack(COLD, known, COLD_AT)
end
if counts then
    bound = redis.call('HLEN', session_key) - others + (known and 0 or 1)
    if bound == 0 then
        head, free, largest, earliest = first_serial, ids + PACKET_IDS, 0, 0
    end
end
local first_packet_id = ids % PACKET_IDS + 1
local replaced, told
if given then
    local seen_last, seen_ids, next_free, list, gone
    seen_last, seen_ids, next_ids, next_free, list, gone =
        string.match(given, '^(%-?%d+):(%d+):(%d+):(%d+):([%d,]+):([%d,]*)$')
    if not seen_last then
        return redis.error_reply('INVALID given is not last:ids:next_ids:free:packet_ids:replaced')
    end
    if seen_last + 0 ~= last or seen_ids + 0 ~= ids then
        return { 'conflict' }
    end
    replaced, told = {}, list
    local _, given_ids = string.gsub(list, '%d+', '')
    if given_ids ~= count then
        return redis.error_reply('INVALID a packet id per message is expected')
    end
    for number in string.gmatch(gone, '%d+') do
        if redis.call('HEXISTS', session_key, number) == 1 then
            replaced[#replaced + 1] = number
        end
    end
    first_packet_id, next_ids, free = string.match(list, '%d+') + 0, next_ids + 0, next_free + 0
elseif next_ids > free then
    return { 'conflict' }
end
local names
if source then
    record = record .. ';' .. format('%d', chunk) .. ':' .. format('%d', first_serial) .. ':'
        .. (told or format('%d+%d', first_packet_id, count)) .. ':' .. positions
    if not remembered then
        -- The names of all sources are kept, too, as the session cannot be asked for them.
        names = redis.call('HGET', session_key, 'sources')
        others = others + (names and 1 or 2)
        names = (names or '') .. struct.pack('>I4', #source) .. source
    end
end

local gone = replaced and #replaced or 0
expired_now = expired_now + gone
if live == 0 then
    -- A session that has never stored anything gets no counts.
    if last >= 0 and (source or refused > 0 or over > 0 or count > 0) then
        local state = struct.pack(
            STATE, last, ids, bound, free, largest, earliest, until_ms, guarded, since, ahead, head, delivered, others,
            trimmed_so_far, expired_so_far + expired_now, refused_so_far + refused, quarantined
        )
        if source then
            redis.call('HSET', session_key, 's', state, source, record)
        else
            redis.call('HSET', session_key, 's', state)
        end
        if names then
            redis.call('HSET', session_key, 'sources', names)
        end
        if note and source then
            note(session_key, '-')
        end
    end
    return format('%d:0:%d:0:0:%s', first_serial, bound, positions)
end

-- Of the size that one message needs.
local values, at = { 's', '', '', '' }, 2
if names then
    values, at = { 's', '', source, record, 'sources', names }, 6
elseif source then
    values, at = { 's', '', source, record, '', '' }, 4
end
local passed, is_expected = 1, given or expected == first_packet_id
-- Writing a number takes a twelfth of a message's time: ten share all digits but the last.
local digits, tens = count > 4 and { [0] = '0', '1', '2', '3', '4', '5', '6', '7', '8', '9' }, nil
for index = 1, count do
    if expired and expired[passed] == index - 1 then
        passed = passed + 1
    else
        serial = serial + 1
        local message = ARGV[first_entry + index - 1]
        if #message < HEAD_BYTES then
            return redis.error_reply('INVALID message ' .. index .. ' is no record')
        end
        if digits and serial > 9 then
            local digit = serial % 10
            tens = tens and digit > 0 and tens or format('%d', (serial - digit) / 10)
            values[at + 1] = tens .. digits[digit]
        else
            values[at + 1] = format('%d', serial)
        end
        values[at + 2] = is_expected and message
            or struct.pack('>H', (ids + index - 1) % PACKET_IDS + 1) .. string.sub(message, 3)
        at = at + 2
    end
end

last = serial
if given or expired then
    since, ahead, changed = last + 1, next_ids - last, true
elseif since == 0 or ids + 1 - first_serial ~= ahead then
    since, ahead, changed = first_serial, ids + 1 - first_serial, true
end
ids = next_ids
if earliest == 0 or soonest < earliest then
    earliest, changed = soonest, true
end
if longest > largest then
    largest, changed = longest, true
end
local moved
if wanted_ms == 0 or (until_ms == -1 and bound > 0) then
    moved = until_ms ~= -1
    until_ms = -1
elseif wanted_ms > until_ms then
    moved = true
    until_ms = math.min(math.ceil(wanted_ms / HOUR_MS) * HOUR_MS, MAX_INTEGER)
end

changed = changed or moved
if changed and not head then
    head, delivered, others, trimmed_so_far, expired_so_far, refused_so_far, quarantined =
        struct.unpack(COLD, known, COLD_AT)
end
local messages, place, trims = bound + live - gone, head, 0
local trims_from = place
if messages > limit and delivered < head and gone == 0 then
    -- Expired messages go first, and the caller finds them.
    local time = redis.call('TIME')
    if time[1] * 1000 + time[2] / 1000 < earliest then
        trims = math.min(messages - limit, last - head + 1, PLACES_PER_TRIM)
        head = head + trims
    end
end
bound = messages - trims
if changed then
    values[2] = struct.pack(
        STATE, last, ids, bound, free, largest, earliest, until_ms, guarded, since, ahead, head, delivered, others,
        trimmed_so_far + trims, expired_so_far + expired_now, refused_so_far + refused, quarantined
    )
else
    values[2] = struct.pack('>ddd', last, ids, bound) .. string.sub(known, 25)
end
-- This write comes first, as a full server refuses it.
redis.call('HSET', session_key, unpack(values, 1, at))
if moved and until_ms == -1 then
    redis.call('PERSIST', session_key)
elseif moved and not note then
    -- A session with a mirror stays until the other store has its changes.
    redis.call('PEXPIREAT', session_key, format('%d', until_ms))
end
local trimmed, places = 0, PLACES_PER_TRIM
while trims > 0 do
    local serials = {}
    for index = 1, trims do
        serials[index] = format('%d', place + index - 1)
    end
    trimmed = trimmed + redis.call('HDEL', session_key, unpack(serials))
    place, places = place + trims, places - trims
    -- The state is right already unless places had no message.
    trims = math.min(messages - trimmed - limit, last - place + 1, places)
end
if place ~= head or bound ~= messages - trimmed then
    redis.call('HSET', session_key, 's', struct.pack(
        STATE, last, ids, messages - trimmed, free, largest, earliest, until_ms, guarded, since, ahead, place,
        delivered, others, trimmed_so_far + trimmed, expired_so_far + expired_now, refused_so_far + refused, quarantined
    ))
end
if gone > 0 then
    redis.call('HDEL', session_key, unpack(replaced))
end
if note then
    note(session_key, live > 1 and format('%d-%d', first_serial, last) or format('%d', last))
    if trimmed > 0 then
        note(session_key, format('%d-%d', trims_from, place - 1))
    end
end
if is_expected and messages <= limit and not given and not expired then
    return first_serial
end
return format('%d:%d:%d:%d:%d:%s', first_serial, first_packet_id, messages - trimmed, trimmed, gone, positions)
