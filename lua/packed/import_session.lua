#!lua
--[[
Purpose
    Write one chunk of a session that is copied from elsewhere. A whole import, a repeated import, and an import that
    was killed half-way and started again leave the same messages, order and expiries.
KEYS
    [1]  session         the session
ARGV
    [1]  plan            id of the plan that imports; restore: and a digest for an export that is restored
    [2]  epoch           decimal; a session with a greater one is left alone
    [3]  owner           store that owns the session after the last chunk: redis or postgres
    [4]  chunk           number of this chunk, from 0; chunk 0 starts an unfinished import again
    [5]  last            1 for the last chunk, else 0
    [6]  last_packet_id  0 to 65535, recorded with the last chunk
    [7]  last_serial     last serial, recorded with the last chunk; empty: that of the last message
    [8]  until_ms        expiry of the key, set with the last chunk; empty: none
    [9+] messages        a pair per message: serial, and its record with its packet id
Returns
    {"imported", written, expired}  the chunk is stored; expired messages are counted, not written
    {"unchanged", written, expired}  this plan has finished this session before: 0 and 0, nothing was written
    {"used", written, expired}      likewise, and the session was used since: that is recorded, and nothing else written
Errors
    INVALID          an argument breaks the rules above
    STALE            a greater epoch owns the session
    NOT_OWNER        the session belongs to Redis and no import made it, or it moves while its client is connected
    MOVED_ON         the session exists without an import, or has been used since it was imported
    IMPORTED_BEFORE  the session holds the untouched import of another plan
    OUT_OF_ORDER     a chunk before this one is missing; start again with chunk 0
Cost
    O(M) for M messages in the chunk; about 15 us per call and 1 us per message. At most 256 messages.
]]
--- @include "includes/integers"
--- @include "includes/packed_import"
--- @include "includes/packed_new"
--- @include "includes/packed_given"
--- @include "includes/packed_state"
--- @include "includes/packed_write"
--- @include "includes/time"

local MESSAGES_PER_CALL = 256
local FIRST_PAIR = 9

local session_key, plan, owner = KEYS[1], ARGV[1], ARGV[3]
local epoch, chunk, last_packet_id = integer(ARGV[2]), integer(ARGV[4]), integer(ARGV[6])
local last_serial, until_ms = integer(ARGV[7]), integer(ARGV[8])
local count = (#ARGV - FIRST_PAIR + 1) / 2

-- Validation: nothing is written before all of it has passed.

if #KEYS ~= 1 or #ARGV < FIRST_PAIR - 1 or count ~= math.floor(count) or count > MESSAGES_PER_CALL then
    return redis.error_reply('INVALID 1 key, 8 arguments and 2 per message, at most 256, are expected')
end
if plan == '' or not epoch or epoch < 0 or not chunk or chunk < 0 then
    return redis.error_reply('INVALID the plan is empty, or epoch or chunk is not an integer of 0 or more')
end
if (owner ~= 'redis' and owner ~= 'postgres') or (ARGV[5] ~= '0' and ARGV[5] ~= '1') then
    return redis.error_reply('INVALID owner is neither redis nor postgres, or the mark of the last chunk not 0 or 1')
end
if not last_packet_id or last_packet_id < 0 or last_packet_id > 65535
    or (ARGV[7] ~= '' and (last_serial or -1) < 0) or (ARGV[8] ~= '' and (until_ms or 0) < 1)
then
    return redis.error_reply('INVALID last packet id, last serial or expiry of the key is out of range')
end
local now = now_ms()
local values, gone = { 's', '' }, {}
local least, greatest, earliest, largest
for index = 1, count do
    local at = FIRST_PAIR + 2 * (index - 1)
    local serial, record, expires_at_ms = given_message(at, index)
    if not serial then
        return record
    end
    if expires_at_ms <= now then
        gone[#gone + 1] = ARGV[at]
    else
        values[#values + 1] = ARGV[at]
        values[#values + 1] = record
        earliest = math.min(earliest or expires_at_ms, expires_at_ms)
        largest = math.max(largest or 0, #record)
    end
    least, greatest = math.min(least or serial, serial), math.max(greatest or 0, serial)
end
local written = #values / 2 - 1

local state = unpacked(redis.call('HGET', session_key, 's'))
local imported = import_of(session_key)
local known_epoch, known_plan, progress = integer(imported[2] or '') or 0, imported[4], imported[3]
local fields = redis.call('HLEN', session_key)
if known_epoch > epoch then
    return redis.error_reply('STALE epoch ' .. string.format('%d', known_epoch) .. ' owns the session')
end
if known_plan == plan and progress == 'done' then
    if not used_since(imported, state, fields) then
        return { 'unchanged', 0, 0 }
    end
    if not imported[8] then
        state.others = state.others + 1
        redis.call('HSET', session_key, 'used', '1', 's', packed(state))
    end
    return { 'used', 0, 0 }
end
-- In a session that moves, a caller that knows its epoch may restore an export if the session was not used.
local restores = not known_plan and imported[1] == 'redis' and epoch > 0 and known_epoch == epoch
    and string.sub(plan, 1, 8) == 'restore:'
if not known_plan and imported[1] == 'redis' and not restores then
    return redis.error_reply('NOT_OWNER the session belongs to Redis and was not imported')
end
if not known_plan and progress == 'done' and not restores then
    return redis.error_reply('NOT_OWNER the session moves while its client is connected: leave it to that move')
end
if chunk > 0 and (known_plan ~= plan or integer(progress or '') ~= chunk) then
    return redis.error_reply('OUT_OF_ORDER chunk ' .. ARGV[4] .. ' has no predecessor: start again with chunk 0')
end
if chunk == 0 and not known_plan and state then
    return redis.error_reply('MOVED_ON the session exists and was not imported')
end
if chunk == 0 and known_plan and known_plan ~= plan then
    if progress == 'done' and used_since(imported, state, fields) then
        return redis.error_reply('MOVED_ON the session has been used since plan ' .. known_plan .. ' imported it')
    end
    return redis.error_reply('IMPORTED_BEFORE plan ' .. known_plan .. ' imported the session: drop that import first')
end

-- Writing: HSET, which a full server refuses, comes first; removals come last.

state = state or new_state(fields)
if greatest then
    state.head = state.last < 0 and least or math.min(state.head, least)
    state.last = math.max(state.last, greatest)
    state.largest = math.max(state.largest, largest or 0)
    if earliest then
        state.earliest = state.earliest == 0 and earliest or math.min(state.earliest, earliest)
    end
end
local own = { plan = plan, epoch = ARGV[2], import = string.format('%d', chunk + 1) }
state.guarded = 1
if ARGV[5] == '1' then
    state.last = math.max(state.last, last_serial or -1)
    -- The next save looks through the messages, since any of them may have the next packet id.
    state.ids, state.free = last_packet_id, last_packet_id
    state.since, state.offset = state.last + 1, last_packet_id - state.last
    state.guarded = owner == 'redis' and not imported[9] and 0 or 1
    state.until_ms = until_ms or -1
    own.import, own.owner, own.imported_last_packet_id = 'done', owner, ARGV[6]
    own.imported_state = state_of_import(state)
end
local messages = fields - math.min(state.others, fields) + written
for index = 3, #values, 2 do
    messages = messages - redis.call('HEXISTS', session_key, values[index])
end
local expired_before = 0
for _, serial in ipairs(gone) do
    expired_before = expired_before + redis.call('HEXISTS', session_key, serial)
end
state.bound = messages
own.references = string.format('%d', messages - expired_before)
for name, value in pairs(own) do
    state.others = state.others + 1 - redis.call('HEXISTS', session_key, name)
    values[#values + 1] = name
    values[#values + 1] = value
end
values[2] = packed(state)
redis.call('HSET', session_key, unpack(values))
if ARGV[5] == '1' and imported[9] then
    --- @include "includes/outbox"
    note_change(session_key, '*')
elseif ARGV[5] == '1' and until_ms then
    redis.call('PEXPIREAT', session_key, ARGV[8])
end
if expired_before > 0 then
    redis.call('HDEL', session_key, unpack(gone))
end
return { 'imported', written, #gone }
