#!lua
--[[
Purpose
    Bring the copy of a session that the other store owns up to date, in one call or several. A repeated call has the
    same result.
KEYS
    [1]  messages        sorted set of references
    [2]  last_packet_id  last packet id
    [3]  session         fields of the session
    [4+] payloads        keys of messages: first those to remove, then those to write, in the order of the triples
ARGV
    [1]  epoch             of that store's ownership; a session with a greater one is left alone
    [2]  removed           number of payload keys to remove
    [3]  last_packet_id    0 to 65535; empty: none
    [4]  last_serial       last serial; empty: none
    [5]  delivered_serial  serial up to which messages have been sent; empty: unknown
    [6]  sources           number of sources that follow
    [7+] values            a pair per source: its name, and the offset of its last saved batch, empty to remove the
                           source; then a triple per message to write: serial, expires_at_ms, JSON
Returns
    {written, removed}  messages written; references removed, also of messages to write that have expired
Errors
    INVALID    an argument breaks the rules above, or a payload key comes twice
    STALE      the session has a greater epoch
    NOT_OWNER  these keys own the session, or it is moving from them
    MOVED_ON   the session has been used here, and has no owner
Cost
    O(M log N) for M messages and N references; about 15 us per call and 5 us per message. At most 256 payload keys
    and 256 sources.
]]
--- @include "includes/integers"
--- @include "includes/last_packet_id"
--- @include "includes/time"

local PAYLOAD_KEYS_PER_CALL = 256
local SOURCES_PER_CALL = 256
local FIRST_PAYLOAD = 4
local FIRST_VALUE = 7

local messages_key, last_packet_id_key, session_key = KEYS[1], KEYS[2], KEYS[3]
local last_packet_id, last_serial, delivered_serial = ARGV[3], ARGV[4], ARGV[5]
local epoch, removed, sources = integer(ARGV[1]), integer(ARGV[2]), integer(ARGV[6])

-- Validation: nothing is written before all of it has passed.

local count = #KEYS - FIRST_PAYLOAD + 1
if not removed or removed < 0 or removed > count or not sources or sources < 0
    or #ARGV ~= FIRST_VALUE - 1 + 2 * sources + 3 * (count - removed)
then
    return redis.error_reply('INVALID 3 keys, payload keys, 6 arguments, 2 per source and 3 per message are expected')
end
if count > PAYLOAD_KEYS_PER_CALL or sources > SOURCES_PER_CALL then
    return redis.error_reply(
        'INVALID a call takes at most ' .. PAYLOAD_KEYS_PER_CALL .. ' messages and ' .. SOURCES_PER_CALL .. ' sources'
    )
end
if not epoch or epoch < 0 then
    return redis.error_reply('INVALID epoch is not an integer of 0 or more')
end
if not is_last_packet_id(last_packet_id) then
    return redis.error_reply('INVALID last packet id is not an integer from 0 to 65535')
end
local function is_serial(text)
    local serial = integer(text)
    return serial ~= nil and serial >= 0
end
if (last_serial ~= '' and not is_serial(last_serial)) or (delivered_serial ~= '' and not is_serial(delivered_serial))
then
    return redis.error_reply('INVALID last or delivered serial is neither empty nor an integer of 0 or more')
end

--- @include "includes/noted_sources"
local now = now_ms()
local going, written, seen = {}, {}, {}
for index = 1, count do
    local key = KEYS[FIRST_PAYLOAD - 1 + index]
    if seen[key] then
        return redis.error_reply('INVALID payload key ' .. index .. ' comes twice')
    end
    seen[key] = true
    if index <= removed then
        going[#going + 1] = key
    else
        local at = FIRST_VALUE + 2 * sources + 3 * (index - removed - 1)
        local expires_at_ms = integer(ARGV[at + 1])
        if not is_serial(ARGV[at]) or not expires_at_ms then
            return redis.error_reply('INVALID serial or expiry of payload key ' .. index .. ' is not an integer')
        end
        if expires_at_ms <= now then
            going[#going + 1] = key
        else
            written[#written + 1] = index
        end
    end
end

local fields = redis.call('HMGET', session_key, 'owner', 'epoch', 'last_serial', 'delivered_serial')
if (integer(fields[2] or '') or -1) > epoch then
    return redis.error_reply('STALE epoch ' .. fields[2] .. ' owns the session: ask for its owner')
end
if fields[1] == 'redis' or fields[1] == 'fenced' then
    return redis.error_reply('NOT_OWNER the session is owned here, or it is on its way from here')
end
if not fields[1] and (fields[3] or fields[4] or redis.call('EXISTS', messages_key, last_packet_id_key) > 0) then
    return redis.error_reply('MOVED_ON the session has been used here, and nobody owns it: purge it here first')
end

-- Writing: HSET, which a full server refuses, comes first, before anything has changed; removals come last.

redis.call('HSET', session_key, 'owner', 'postgres', 'epoch', ARGV[1], 'import', 'done')
local scored = {}
for position, index in ipairs(written) do
    local key = KEYS[FIRST_PAYLOAD - 1 + index]
    local at = FIRST_VALUE + 2 * sources + 3 * (index - removed - 1)
    redis.call('SET', key, ARGV[at + 2], 'PXAT', ARGV[at + 1])
    scored[2 * position - 1] = ARGV[at]
    scored[2 * position] = key
end
if #scored > 0 then
    redis.call('ZADD', messages_key, unpack(scored))
end
if #noted > 0 then
    redis.call('HSET', session_key, unpack(noted))
end
for name, serial in pairs({ last_serial = last_serial, delivered_serial = delivered_serial }) do
    if serial == '' then
        forgotten[#forgotten + 1] = name
    else
        redis.call('HSET', session_key, name, serial)
    end
end
-- The next save in Redis checks owner and messages, and an import must not undo a session that has changed since.
redis.call(
    'HDEL', session_key, 'saved_last_packet_id', 'until_ms', 'earliest_expiry_ms', 'mirror', 'outbox',
    'outbox_version', 'outbox_ms', 'plan', 'references', 'imported_last_packet_id', 'imported_until_ms', 'used',
    unpack(forgotten)
)
redis.call('PERSIST', session_key)
redis.call('PERSIST', messages_key)
if last_packet_id == '' then
    redis.call('UNLINK', last_packet_id_key)
else
    redis.call('SET', last_packet_id_key, last_packet_id)
end
local gone = 0
if #going > 0 then
    redis.call('UNLINK', unpack(going))
    gone = redis.call('ZREM', messages_key, unpack(going))
end
return { #written, gone }
