#!lua
--[[
Purpose
    Write one chunk of a DEVICE session that is copied from PostgreSQL. A whole import, a repeated import, and an import
    that was killed half-way and started again leave the same keys, order and expiries.
KEYS
    [1]  messages        sorted set of references
    [2]  last_packet_id  last packet id
    [3]  session         owner, epoch and state of the import
    [4+] payloads        one key per message of this chunk, in the order of the triples
ARGV
    [1]  plan            id of the plan that imports; restore: and a digest for an export that is restored
    [2]  epoch           decimal; a session with a greater one is left alone
    [3]  owner           store that owns the session after the last chunk: redis or postgres
    [4]  chunk           number of this chunk, from 0; chunk 0 starts an unfinished import again
    [5]  last            1 for the last chunk, else 0
    [6]  last_packet_id  0 to 65535, written with the last chunk, with an expiry in the year 144,683, which the
                         next save of any program takes off; empty: the key is not written
    [7]  last_serial     last serial, recorded with the last chunk; empty: unknown
    [8+] messages        a triple per message: serial, expires_at_ms, JSON
Returns
    {"imported", written, expired}  the chunk is stored; expired messages are counted, not written
    {"unchanged", written, expired}  this plan has finished this session before: 0 and 0, nothing was written
    {"used", written, expired}      likewise, and the session was used since: that is recorded, and nothing else written
Errors
    INVALID          an argument breaks the rules above, a payload key comes twice or belongs to another serial
    STALE            a greater epoch owns the session
    NOT_OWNER        the session belongs to Redis and no import made it, or it moves while its client is connected
    MOVED_ON         the session exists without an import, or has been used since it was imported
    IMPORTED_BEFORE  the session holds the untouched import of another plan
    OUT_OF_ORDER     a chunk before this one is missing; start again with chunk 0
Cost
    O(M log N) for M messages in the chunk and N references; about 15 us per call and 4 us per message. At most
    5,000 messages.
]]
--- @include "includes/import_state"
--- @include "includes/kept_for_ever"
--- @include "includes/last_packet_id"
--- @include "includes/mirrored"
--- @include "includes/slices"
--- @include "includes/time"
--- @include "includes/touched"

local MESSAGES_PER_CALL = 5000
local FIRST_PAYLOAD = 4
local FIRST_TRIPLE = 8

local messages_key, last_packet_id_key, session_key = KEYS[1], KEYS[2], KEYS[3]
local plan, owner, last_packet_id, last_serial = ARGV[1], ARGV[3], ARGV[6], ARGV[7]
local epoch, chunk = integer(ARGV[2]), integer(ARGV[4])
local count = #KEYS - FIRST_PAYLOAD + 1

-- Validation: nothing is written before all of it has passed.

if count < 0 or #ARGV ~= FIRST_TRIPLE - 1 + 3 * count then
    return redis.error_reply('INVALID 3 keys and a key per message, 7 arguments and 3 per message are expected')
end
--- @include "includes/message_limit"
if plan == '' then
    return redis.error_reply('INVALID the plan id is empty')
end
if not epoch or epoch < 0 then
    return redis.error_reply('INVALID epoch is not an integer of 0 or more')
end
if owner ~= 'redis' and owner ~= 'postgres' then
    return redis.error_reply('INVALID owner is neither redis nor postgres')
end
if not chunk or chunk < 0 then
    return redis.error_reply('INVALID chunk is not an integer of 0 or more')
end
if ARGV[5] ~= '0' and ARGV[5] ~= '1' then
    return redis.error_reply('INVALID the mark of the last chunk is neither 0 nor 1')
end
if not is_last_packet_id(last_packet_id) then
    return redis.error_reply('INVALID last packet id is not an integer from 0 to 65535')
end
if last_serial ~= '' and (integer(last_serial) or -1) < 0 then
    return redis.error_reply('INVALID last serial is neither empty nor an integer of 0 or more')
end

local now = now_ms()
local live, expired_keys, seen = {}, {}, {}
for index = 1, count do
    local key = KEYS[FIRST_PAYLOAD - 1 + index]
    local at = FIRST_TRIPLE + 3 * (index - 1)
    local serial, expires_at_ms = integer(ARGV[at]), integer(ARGV[at + 1])
    if not serial or serial < 0 then
        return redis.error_reply('INVALID serial of message ' .. index .. ' is not an integer of 0 or more')
    end
    if not expires_at_ms then
        return redis.error_reply('INVALID expiry of message ' .. index .. ' is not an integer')
    end
    if seen[key] then
        return redis.error_reply('INVALID payload key of message ' .. index .. ' comes twice in the chunk')
    end
    seen[key] = true
    if expires_at_ms <= now then
        expired_keys[#expired_keys + 1] = key
    else
        live[#live + 1] = index
    end
end

local state = import_state(session_key)
if state.epoch > epoch then
    return redis.error_reply('STALE epoch ' .. string.format('%d', state.epoch) .. ' owns the session')
end
if state.plan == plan and state.import == 'done' then
    if touched(state, messages_key, last_packet_id_key) then
        redis.call('HSET', session_key, 'used', '1')
        return { 'used', 0, 0 }
    end
    return { 'unchanged', 0, 0 }
end
-- In a session that moves, a caller that knows its epoch may restore an export if the session was not used.
local restores = state.plan == '' and state.owner == 'redis' and epoch > 0 and state.epoch == epoch
    and string.sub(plan, 1, 8) == 'restore:'
if restores and redis.call('HEXISTS', session_key, 'last_serial') == 1 then
    return redis.error_reply('MOVED_ON the session has been used')
end
if state.plan == '' and state.owner == 'redis' and not restores then
    return redis.error_reply('NOT_OWNER the session belongs to Redis and was not imported')
end
if state.plan == '' and state.import == 'done' and not restores then
    return redis.error_reply('NOT_OWNER the session moves while its client is connected: leave it to that move')
end
if chunk > 0 and (state.plan ~= plan or integer(state.import) ~= chunk) then
    return redis.error_reply('OUT_OF_ORDER chunk ' .. ARGV[4] .. ' has no predecessor: start again with chunk 0')
end
if chunk == 0 and state.plan == '' and redis.call('EXISTS', messages_key, last_packet_id_key) > 0 then
    return redis.error_reply('MOVED_ON the session exists and was not imported')
end
if chunk == 0 and state.plan ~= '' and state.plan ~= plan then
    if touched(state, messages_key, last_packet_id_key) then
        return redis.error_reply('MOVED_ON the session has been used since plan ' .. state.plan .. ' imported it')
    end
    return redis.error_reply('IMPORTED_BEFORE plan ' .. state.plan .. ' imported the session: drop that import first')
end

-- A payload key of another serial would silently replace that message. An empty set needs no check.
local references = redis.call('ZCARD', messages_key)
if references > 0 then
    local at = 0
    local taken
    local function compare(...)
        for _, score in ipairs(redis.call('ZMSCORE', messages_key, ...)) do
            at = at + 1
            if score and tonumber(score) ~= integer(ARGV[FIRST_TRIPLE + 3 * (at - 1)]) then
                taken = taken or at
            end
        end
    end
    local payload_keys = {}
    for index = 1, count do
        payload_keys[index] = KEYS[FIRST_PAYLOAD - 1 + index]
    end
    each_slice(payload_keys, compare)
    if taken then
        return redis.error_reply('INVALID payload key of message ' .. taken .. ' belongs to another serial')
    end
end

-- Writing: SET or HSET, which a full server refuses, come first, before anything has changed; removals come last.

local scored = {}
for position, index in ipairs(live) do
    local key = KEYS[FIRST_PAYLOAD - 1 + index]
    local at = FIRST_TRIPLE + 3 * (index - 1)
    redis.call('SET', key, ARGV[at + 2], 'PXAT', ARGV[at + 1])
    scored[2 * position - 1] = ARGV[at]
    scored[2 * position] = key
end
each_slice(scored, function(...)
    redis.call('ZADD', messages_key, ...)
end)

-- In an empty set every live message has added a reference; otherwise an earlier try may have added some of them.
local remaining = references == 0 and #live or redis.call('ZCARD', messages_key)
local fields = {
    'plan', plan, 'epoch', ARGV[2], 'import', string.format('%d', chunk + 1),
    'references', string.format('%d', remaining),
}
if ARGV[5] == '1' then
    fields[6] = 'done'
    fields[9], fields[10] = 'owner', owner
    fields[11], fields[12] = 'imported_last_packet_id', last_packet_id
    if last_serial ~= '' then
        fields[13], fields[14] = 'last_serial', last_serial
    end
    note_all(session_key)
    if last_packet_id ~= '' then
        redis.call('SET', last_packet_id_key, last_packet_id, 'PXAT', KEPT_MS)
        fields[#fields + 1] = 'imported_until_ms'
        fields[#fields + 1] = KEPT_MS
    end
end
redis.call('HSET', session_key, unpack(fields))

-- Left by an earlier try, when these messages were still alive.
if references > 0 then
    each_slice(expired_keys, function(...)
        remaining = remaining - redis.call('ZREM', messages_key, ...)
    end)
    redis.call('HSET', session_key, 'references', string.format('%d', remaining))
end
return { 'imported', #live, #expired_keys }
