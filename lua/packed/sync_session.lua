#!lua
--[[
Purpose
    Bring the copy of a session that the other store owns up to date, in one call or several. A repeated call has the
    same result.
KEYS
    [1]  session           the session
ARGV
    [1]  epoch             of that store's ownership; a session with a greater one is left alone
    [2]  last_packet_id    0 to 65535; empty: none
    [3]  last_serial       last serial; empty: none
    [4]  delivered_serial  serial up to which messages have been sent; empty: unknown
    [5]  first_serial      with the last call for a copy of the whole session, a serial before which there is no
                           message; else empty
    [6]  free              likewise, how many packet ids after the last one are free; else empty
    [7]  source_names      field that names the sources: for each the bytes of source: and its name, as 4 bytes, and
                           that text
    [8]  removed           number of messages to remove
    [9]  sources           number of sources that follow
    [10+] values           a pair per source: its name, and the offset of its last saved batch, empty to remove the
                           source; then serials of messages to remove; then a pair per message to write: serial, record
Returns
    {written, removed}  messages written; messages removed, also of those to write that have expired
Errors
    INVALID    an argument breaks the rules above
    STALE      the session has a greater epoch
    NOT_OWNER  these keys own the session, or it is moving from them
    MOVED_ON   the session has been used here, and has no owner
Cost
    O(M) for M messages; about 20 us per call and 1 us per message. At most 256 messages and 256 sources.
]]
--- @include "includes/integers"
--- @include "includes/last_packet_id"
--- @include "includes/packed_given"
--- @include "includes/packed_new"
--- @include "includes/packed_state"
--- @include "includes/packed_write"
--- @include "includes/time"

local MESSAGES_PER_CALL = 256
local SOURCES_PER_CALL = 256
local FIRST_VALUE = 10

local session_key = KEYS[1]
local epoch, free, removed, sources = integer(ARGV[1]), integer(ARGV[6]), integer(ARGV[8]), integer(ARGV[9])
local last_serial, delivered, first_serial = integer(ARGV[3]), integer(ARGV[4]), integer(ARGV[5])

-- Validation: nothing is written before all of it has passed.

if #KEYS ~= 1 or not removed or removed < 0 or not sources or sources < 0 then
    return redis.error_reply('INVALID 1 key, 9 arguments, 2 per source, 1 and 2 per message are expected')
end
local first_gone = FIRST_VALUE + 2 * sources
local first_pair = first_gone + removed
local count = (#ARGV - first_pair + 1) / 2
if count < 0 or count ~= math.floor(count) then
    return redis.error_reply('INVALID 1 key, 9 arguments, 2 per source, 1 and 2 per message are expected')
end
if removed + count > MESSAGES_PER_CALL or sources > SOURCES_PER_CALL then
    return redis.error_reply(
        'INVALID a call takes at most ' .. MESSAGES_PER_CALL .. ' messages and ' .. SOURCES_PER_CALL .. ' sources'
    )
end
if not epoch or epoch < 0 then
    return redis.error_reply('INVALID epoch is not an integer of 0 or more')
end
if not is_last_packet_id(ARGV[2]) then
    return redis.error_reply('INVALID last packet id is not an integer from 0 to 65535')
end
if (ARGV[3] ~= '' and (last_serial or -1) < 0) or (ARGV[4] ~= '' and (delivered or -1) < 0)
    or (ARGV[5] ~= '' and (first_serial or -1) < 0) or (ARGV[6] ~= '' and (free or -1) < 0)
then
    return redis.error_reply('INVALID a serial or the number of free ids is neither empty nor an integer of 0 or more')
end

--- @include "includes/noted_sources"
for _, text in ipairs({ 'owner', 'postgres', 'epoch', ARGV[1], 'import', 'done', 'sources', ARGV[7] }) do
    noted[#noted + 1] = text
end
local now = now_ms()
local going, written = {}, {}
for index = first_gone, first_pair - 1 do
    if not integer(ARGV[index]) then
        return redis.error_reply('INVALID serial of message ' .. index - first_gone + 1 .. ' is not an integer')
    end
    going[#going + 1] = ARGV[index]
end
local least, greatest, largest, earliest
for index = 1, count do
    local at = first_pair + 2 * (index - 1)
    local serial, record, expires_at_ms = given_message(at, index)
    if not serial then
        return record
    end
    if expires_at_ms <= now then
        going[#going + 1] = ARGV[at]
    else
        written[#written + 1] = ARGV[at]
        written[#written + 1] = record
        least, greatest = math.min(least or serial, serial), math.max(greatest or serial, serial)
        largest = math.max(largest or 0, #record)
        earliest = math.min(earliest or expires_at_ms, expires_at_ms)
    end
end

local fields = redis.call('HMGET', session_key, 'owner', 'epoch', 's')
if (integer(fields[2] or '') or -1) > epoch then
    return redis.error_reply('STALE epoch ' .. fields[2] .. ' owns the session: ask for its owner')
end
if fields[1] == 'redis' or fields[1] == 'fenced' then
    return redis.error_reply('NOT_OWNER the session is owned here, or it is on its way from here')
end
if not fields[1] and fields[3] then
    return redis.error_reply('MOVED_ON the session has been used here, and nobody owns it: purge it here first')
end

-- Writing: HSET, which a full server refuses, comes first; removals come last.

local state = unpacked(fields[3]) or new_state(redis.call('HLEN', session_key))
if fields[3] == false then
    redis.call('HSET', session_key, 's', packed(state))
end
state.others = state.others + redis.call('HSET', session_key, unpack(noted))
if #written > 0 then
    redis.call('HSET', session_key, unpack(written))
end
-- An import must not undo a session that has changed since.
state.others = state.others - redis.call(
    'HDEL', session_key, 'mirror', 'outbox', 'outbox_version', 'outbox_ms', 'plan', 'references',
    'imported_last_packet_id', 'imported_state', 'used', unpack(forgotten)
)
local gone = #going > 0 and redis.call('HDEL', session_key, unpack(going)) or 0
state.last = math.max(last_serial or -1, greatest or -1, first_serial and -1 or state.last)
state.head = first_serial or math.min(state.head, least or state.head)
state.delivered = delivered or -1
state.largest = math.max(state.largest, largest or 0)
if earliest then
    state.earliest = state.earliest == 0 and earliest or math.min(state.earliest, earliest)
end
-- If nothing is known of free packet ids, the next save looks through the messages.
state.ids = integer(ARGV[2]) or 0
state.free, state.since, state.offset = state.ids + (free or 0), state.last + 1, state.ids - state.last
state.bound = redis.call('HLEN', session_key) - state.others
-- What the owner saves may live longer than what is known here.
state.until_ms, state.guarded = -1, 1
redis.call('HSET', session_key, 's', packed(state))
redis.call('PERSIST', session_key)
return { #written / 2, gone }
