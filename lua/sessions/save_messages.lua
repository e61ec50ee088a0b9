#!lua
--[[
Purpose
    Add messages to the end of a session; a repeated call adds them only once.
KEYS
    [1]  messages        sorted set of references
    [2]  last_packet_id  last packet id
    [3]  session         fields of the session
    [4+] payloads        one key per message, named by the packet id that it gets, in the order of the pairs; none
                         where the caller has refused all messages of a batch, and they are to be counted
ARGV
    [1]  heading   "epoch:expected:last_packet_id:until_ms:soon:batch", one text, as each argument costs a hundredth of
                   the call. Epoch of the session as the caller knows it; empty: it does not know owners. Last packet
                   id that the caller knows; empty: the key is absent. Packet id of the last message, 1 to 65535; empty
                   without messages. Expiry of the session's keys, not before that of the last message; empty: none.
                   1 if a message expires within an hour by the caller's clock: then the server's clock decides; else
                   empty. A batch, or empty; batch as "refused:over:offset:chunk:packet_ids:source": messages that the
                   caller refused for their expiry interval, and messages that it found expired, to be counted; number
                   of the batch, which grows; number of this call within it, from 0; text to return for a repeated
                   call, of digits, commas and hyphens; name of the source that numbers the batches, in any bytes.
                   Without a source the three before it are empty, too
    [2+] messages  a pair per message: expires_at_ms, JSON
Returns
    "first_serial:references:expired:*replaced"  one text, as a list costs a tenth of the call: stored under serials
                      that count up from first_serial; members of the set now; positions of expired messages, which were
                      skipped, from 0, with commas. If all had expired, the last packet id has not changed, and if the
                      session does not exist, neither counts nor the batch are recorded. If packet ids of expired
                      messages were used again, the number of their references that were removed
    {"replayed", first_serial, packet_ids, expired}  this call has been made before; nothing was written
    {"forgotten"}     the source has saved a batch with a greater offset; nothing was written
    {"conflict", last_packet_id, *positions}  the last packet id is this one and not the expected one, or else
                      the payload keys at these positions, from 0, are in use; nothing was written
Errors
    INVALID    an argument breaks the rules above, or serials have reached 2^53
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller; not checked if the last save was ours and there is no
               mirror, since a change of the owner removes the record of that save
Cost
    O(M log N) for M messages and N references; about 20 us for a call of one message of 256 B, 8 us per
    message of 1 KB in large ones. At most 256 messages.
]]
-- A save of one message is the most frequent call, so this script avoids work: every function of an include and every
-- table costs time, whether it is used or not. Integers without leading zeros are compared as texts, the shorter one
-- first, because converting them costs more.

local MESSAGES_PER_CALL = 256
local FIRST_PAYLOAD = 4
local FIRST_PAIR = 2
local MAX_PACKET_ID = '65535'
local HOUR_MS = 3600000
local MAX_INTEGER = 9007199254740992
local MAX_INSTANT = '9007199254740992'

-- Local, since a global is looked up by its name each time.
local string, KEYS, ARGV = string, KEYS, ARGV
local messages_key, last_packet_id_key, session_key = KEYS[1], KEYS[2], KEYS[3]
local count = #KEYS - FIRST_PAYLOAD + 1

-- Validation: nothing is written before all of it has passed.

if count < 0 or #ARGV ~= FIRST_PAIR - 1 + 2 * count then
    return redis.error_reply('INVALID 3 keys and a key per message, 1 argument and 2 per message are expected')
end
--- @include "includes/message_limit"
local epoch, expected, last_packet_id, until_ms, soon, batch =
    string.match(ARGV[1], '^(%d*):([^:]*):(%d*):(%d*):(1?):(.*)$')
if not epoch then
    return redis.error_reply('INVALID heading is not epoch:expected:last_packet_id:until_ms:soon:batch')
end
if count > 0 and (last_packet_id < '1' or #last_packet_id > 5
    or (#last_packet_id == 5 and last_packet_id > MAX_PACKET_ID))
then
    return redis.error_reply('INVALID packet id of the last message is not an integer from 1 to 65535')
end
local refused, over, offset, chunk, packet_ids, source = 0, 0, '', '', '', ''
if batch ~= '' then
    --- @include "includes/integers"
    refused, over, offset, chunk, packet_ids, source =
        string.match(batch, '^(%d+):(%d+):(%d*):(%d*):([%d,-]*):(.*)$')
    refused, over = integer(refused), integer(over)
    if not refused or not over or (source ~= '' and not (integer(offset) and integer(chunk))) then
        return redis.error_reply('INVALID batch is not refused:over:offset:chunk:packet_ids:source')
    end
end

-- Reading the time costs a twentieth of a call of one message. If a caller's clock is hours behind, a reference to an
-- expired message is left, as by any message that expires later.
local now
if soon ~= '' then
    -- As includes/time does.
    local time = redis.call('TIME')
    now = time[1] * 1000 + time[2] / 1000
end
local expired
local live = count
local earliest
for index = 1, count do
    local ends_ms = ARGV[FIRST_PAIR + 2 * index - 2]
    local length = #ends_ms
    if not string.find(ends_ms, '^[1-9]%d*$') or length > 16 or (length == 16 and ends_ms > MAX_INSTANT) then
        return redis.error_reply('INVALID expiry of message ' .. index .. ' is not an integer from 1 to 2^53')
    end
    if now and ends_ms + 0 <= now then
        expired = expired or {}
        expired[#expired + 1] = index - 1
        live = live - 1
    elseif not earliest or length < #earliest or (length == #earliest and ends_ms < earliest) then
        earliest = ends_ms
    end
end

-- Every field costs time, so fields that only sessions of other programs need are read below.
local fields, source_field
if source == '' then
    fields = redis.call(
        'HMGET', session_key, 'last_serial', 'saved_last_packet_id', 'until_ms', 'earliest_expiry_ms'
    )
else
    source_field = 'source:' .. source
    fields = redis.call(
        'HMGET', session_key, 'last_serial', 'saved_last_packet_id', 'until_ms', 'earliest_expiry_ms', source_field
    )
end

-- Another program that saved since our last save has changed the last packet id; our fields do not cover its messages.
-- After a whole round, the last packet id is the same again. But if we gave it an expiry, other programs have removed
-- that with their first write, and if it has none, as with a mirror, the greatest score is beyond our last serial.
-- A change of the session's owner removes the record of our last save, so that the owner is checked then.
local serial = fields[1] and fields[1] + 0
local ours = serial and fields[2] == expected
local noted_until = fields[3]
local has_end = noted_until and noted_until ~= 'never'
local mirror, memory
if ours then
    if not has_end or redis.call('PEXPIRETIME', last_packet_id_key) == -1 then
        mirror = redis.call('HGET', session_key, 'mirror')
        ours = (mirror or not has_end) and redis.call('ZCOUNT', messages_key, '(' .. fields[1], '+inf') == 0
    end
end
if not ours then
    --- @include "includes/guard"
    -- A session that we have saved to no longer belongs to an import, which leaves it alone.
    local others = redis.call(
        'HMGET', session_key, 'owner', 'import', 'epoch', 'mirror', 'delivered_serial', 'delivered_at'
    )
    local refused_reply = refusal(others, epoch)
    if refused_reply then
        return refused_reply
    end
    mirror = others[4]
    memory = { others[5], others[6], fields[2], fields[1] }
elseif mirror and epoch ~= '' and epoch ~= mirror then
    return redis.error_reply('STALE epoch ' .. mirror .. ' owns the session: ask for its owner')
end

-- The record of a source: its last offset, then ';chunk:first serial:packet ids:expired' for each chunk of it.
local record = offset
if fields[5] then
    local recorded = tonumber(string.match(fields[5], '^%d+'))
    if recorded > offset + 0 then
        return { 'forgotten' }
    end
    if recorded == offset + 0 then
        record = fields[5]
        local saved_serial, ids, positions = string.match(record, ';' .. chunk .. ':(%d+):([%d,-]*):([%d,]*)')
        if saved_serial then
            return { 'replayed', tonumber(saved_serial), ids, positions }
        end
    end
end

local delivered_serial
if not ours then
    local current = redis.call('GET', last_packet_id_key) or ''
    if current ~= expected then
        return { 'conflict', current }
    end
    if memory[1] then
        --- @include "includes/delivered"
        delivered_serial = delivered_up_to(messages_key, current, memory)
    end
    local highest = redis.call('ZRANGE', messages_key, '0', '0', 'REV', 'WITHSCORES')[2] or serial or expected
    serial = math.max(math.floor(tonumber(highest) or 0), serial or 0, tonumber(memory[1] or '0'))
end
if serial > MAX_INTEGER - count then
    return redis.error_reply('INVALID serials of the session have reached 2^53')
end
local first_serial = serial + 1
local first_text = string.format('%d', first_serial)
local positions = expired and table.concat(expired, ',') or ''
if source ~= '' then
    record = record .. ';' .. chunk .. ':' .. first_text .. ':' .. packet_ids .. ':' .. positions
end

-- Writing: the first write is a SET, which a full server refuses, and so are HSET and HINCRBY when all have expired.

local earliest_text = ours and fields[4] or ''
local references
local replaced = 0
-- Whether the hash has fields of a session: a hash with only the owner does not count as a session and gets no counts.
local kept = true
if live > 0 then
    -- One command checks and writes. If it finds another value, which is rare, the value is put back before others can
    -- see the change.
    if ours then
        local current = redis.call('SET', last_packet_id_key, last_packet_id, 'KEEPTTL', 'GET')
        if current ~= expected then
            if current then
                redis.call('SET', last_packet_id_key, current, 'KEEPTTL')
            else
                redis.call('UNLINK', last_packet_id_key)
            end
            return { 'conflict', current or '' }
        end
    end
    local scored = count > 1 and {}
    local filled, passed = 0, 1
    for index = 1, count do
        local key = KEYS[FIRST_PAYLOAD - 1 + index]
        local free
        if expired and expired[passed] == index - 1 then
            passed = passed + 1
            -- Its packet id is skipped, too, but must be free like those of the others.
            free = redis.call('EXISTS', key) == 0
        else
            local at = FIRST_PAIR + 2 * index - 2
            -- Here, too, most packet ids are free, and the messages of this call have no references yet.
            free = redis.call('SET', key, ARGV[at + 1], 'NX', 'PXAT', ARGV[at])
            if free and scored then
                serial = serial + 1
                scored[filled + 1] = filled == 0 and first_text or string.format('%d', serial)
                scored[filled + 2] = key
                filled = filled + 2
            end
        end
        if not free then
            for position = 2, filled, 2 do
                redis.call('UNLINK', scored[position])
            end
            if ours then
                redis.call('SET', last_packet_id_key, expected, 'KEEPTTL')
            end
            local in_use = {}
            for position = 1, count do
                if redis.call('EXISTS', KEYS[FIRST_PAYLOAD - 1 + position]) == 1 then
                    in_use[#in_use + 1] = position - 1
                end
            end
            return { 'conflict', expected, unpack(in_use) }
        end
    end
    local last_serial = first_text
    local added
    if scored then
        last_serial = scored[filled - 1]
        added = redis.call('ZADD', messages_key, unpack(scored))
    else
        added = redis.call('ZADD', messages_key, first_text, KEYS[FIRST_PAYLOAD])
    end
    -- The packet id of a message that has expired is free, and its reference becomes that of the new one.
    replaced = live - added
    references = redis.call('ZCARD', messages_key)
    local was_empty = references == added

    -- Messages of another program may expire later than we know. Then the keys have no expiry until the set has been
    -- empty.
    local until_text = 'never'
    if until_ms ~= '' and (was_empty or (ours and has_end)) then
        if has_end and (#noted_until > #until_ms or (#noted_until == #until_ms and noted_until >= until_ms)) then
            until_text = noted_until
        else
            until_text = string.format('%d', math.min(math.ceil(until_ms / HOUR_MS) * HOUR_MS, MAX_INTEGER))
        end
    end
    local moved = until_text ~= noted_until
    if not ours then
        redis.call('SET', last_packet_id_key, last_packet_id)
    end
    if until_text == 'never' then
        if moved then
            -- Without an expiry of the set, the record of what has been sent would not be used: see includes/delivered.
            --- @include "includes/kept_for_ever"
            if redis.call('HEXISTS', session_key, 'delivered_serial') == 1 and delivered_serial ~= -1 then
                redis.call('PEXPIREAT', messages_key, KEPT_MS)
            else
                redis.call('PERSIST', messages_key)
            end
            redis.call('PERSIST', last_packet_id_key)
            redis.call('PERSIST', session_key)
        end
    elseif moved or was_empty then
        -- An empty set did not exist as a key, so the set has no expiry yet.
        redis.call('PEXPIREAT', messages_key, until_text)
        -- The state of a session with a mirror stays until the other store has it.
        if (moved or not ours) and not mirror then
            redis.call('PEXPIREAT', last_packet_id_key, until_text)
        end
    end

    if was_empty or (earliest_text ~= ''
        and (#earliest < #earliest_text or (#earliest == #earliest_text and earliest < earliest_text)))
    then
        earliest_text = earliest
    end
    if source ~= '' then
        redis.call(
            'HSET', session_key, 'last_serial', last_serial, 'saved_last_packet_id', last_packet_id,
            source_field, record
        )
    else
        redis.call('HSET', session_key, 'last_serial', last_serial, 'saved_last_packet_id', last_packet_id)
    end
    if delivered_serial then
        if delivered_serial == -1 then
            redis.call('HDEL', session_key, 'delivered_serial', 'delivered_at')
        else
            redis.call('HDEL', session_key, 'delivered_at')
            redis.call('HSET', session_key, 'delivered_serial', string.format('%d', delivered_serial))
        end
    end
    if moved or earliest_text ~= fields[4] then
        redis.call('HSET', session_key, 'until_ms', until_text, 'earliest_expiry_ms', earliest_text)
    end
    if moved and until_text ~= 'never' and not mirror then
        redis.call('PEXPIREAT', session_key, until_text)
    end
else
    local current = redis.call('GET', last_packet_id_key) or ''
    if current ~= expected then
        return { 'conflict', current }
    end
    references = redis.call('ZCARD', messages_key)
    kept = fields[1] or delivered_serial or redis.call('HEXISTS', session_key, 'plan') == 1
    if source ~= '' and kept then
        redis.call('HSET', session_key, source_field, record)
    end
end
if kept and (expired or refused > 0 or over > 0 or replaced > 0) then
    --- @include "includes/session_counters"
    count_in_session(session_key, 'expired', count - live + over + replaced)
    count_in_session(session_key, 'refused', refused)
end
if mirror and kept and (live > 0 or source ~= '') then
    --- @include "includes/outbox"
    local change = live > 0 and first_text or '-'
    if not ours and fields[2] then
        -- Another program has written messages that were not recorded.
        change = '*'
    elseif live > 1 then
        change = first_text .. '-' .. string.format('%d', first_serial + live - 1)
    end
    note_change(session_key, change)
end
if replaced > 0 then
    positions = positions .. ':' .. replaced
end
return string.format('%s:%d:%s', first_text, references, positions)
