#!lua
--[[
Purpose
    Add one repaired message of the quarantine to a session whose import is complete, at the place of its serial. A
    repeated call adds nothing.
KEYS
    [1]  session         the session
ARGV
    [1]  plan            id of the plan that imported the session
    [2]  epoch           decimal; a session with a greater one is left alone
    [3]  expected        state as the caller had read it before it read the packet ids of all messages
    [4]  last_packet_id  new last packet id, 1 to 65535; empty: it stays
    [5]  holder          serial of a message that had the packet id of this one then; empty: none had
    [6]  serial          of the message
    [7]  record          its record
Returns
    {"replayed", packet_id, state}  the message is stored under this packet id; the state that the session has now
    {"unchanged", packet_id}        an earlier call has stored the message, under this packet id
    {"expired", packet_id}          the message has expired; nothing was written, and the packet id is empty
Errors
    INVALID           an argument breaks the rules above
    STALE             a greater epoch owns the session
    MOVED_ON          this plan has not completed the session's import, its state is another, or the serial has been
                      given to a later message
    PACKET_ID_IN_USE  another message of the session has this packet id
Cost
    O(B) for a record of B bytes; about 30 us, and 1 us per KB.
]]
--- @include "includes/integers"
--- @include "includes/packed_given"
--- @include "includes/packed_ids"
--- @include "includes/packed_import"
--- @include "includes/packed_put"
--- @include "includes/packed_state"
--- @include "includes/packed_write"
--- @include "includes/replayed_before"
--- @include "includes/time"

local session_key, plan, epoch, last_packet_id = KEYS[1], ARGV[1], integer(ARGV[2]), integer(ARGV[4])
if #KEYS ~= 1 or #ARGV ~= 7 or plan == '' or not epoch or epoch < 0 or (ARGV[5] ~= '' and not integer(ARGV[5]))
    or (ARGV[4] ~= '' and not (last_packet_id and last_packet_id >= 1 and last_packet_id <= 65535))
then
    return redis.error_reply('INVALID 1 key, a plan, an epoch, a state, a packet id and 2 serials are expected')
end
local serial, refused_reply, expires_at_ms = given_message(6, 1)
if not serial then
    return refused_reply
end
local record = ARGV[7]
local before = replayed_before(session_key, plan, epoch, ARGV[6])
if before then
    return before
end
local text, fields = redis.call('HGET', session_key, 's'), redis.call('HLEN', session_key)
local state, imported = unpacked(text), import_of(session_key)
-- Serials that the session has given out since its import are those of later messages, acknowledged or not.
local imported_last, imported_ids = string.match(imported[7] or '-1:0:0', '^(%-?%d+)(:.*)$')
if not state or (serial > imported_last + 0 and serial <= state.last)
    or redis.call('HEXISTS', session_key, ARGV[6]) == 1
then
    return redis.error_reply('MOVED_ON serial ' .. ARGV[6] .. ' has been given to a message that came later')
end
if text ~= ARGV[3] then
    return redis.error_reply('MOVED_ON the state of the session is not the expected one')
end
local packet_id = struct.unpack('>H', record)
local holder = ARGV[5] ~= '' and redis.call('HGET', session_key, ARGV[5])
if holder and #holder >= HEAD_BYTES and struct.unpack('>H', holder) == packet_id then
    return redis.error_reply('PACKET_ID_IN_USE another message of the session has this packet id')
end
if expires_at_ms <= now_ms() then
    return { 'expired', '' }
end

local values = { 's', '', ARGV[6], record, 'replayed:' .. ARGV[6], string.format('%d', packet_id) }
local was_used, has_saved = used_since(imported, state, fields), state.last > imported_last + 0
state.ids = last_packet_id and ids_up_to(state.ids, last_packet_id) or state.ids
put(state, serial, packet_id, expires_at_ms, #record)
state.bound, state.others = fields - state.others + 1, state.others + 1
if not was_used then
    -- A session that was used before must still count as used.
    values[7], values[8] = 'imported_state', state_of_import(state)
    if last_packet_id then
        values[9], values[10] = 'imported_last_packet_id', ARGV[4]
    end
elseif not has_saved then
    -- The serials up to this one are still given to no later message.
    values[7], values[8] = 'imported_state', string.format('%.0f', state.last) .. imported_ids
end
local lives_longer = state.until_ms > 0 and expires_at_ms > state.until_ms
if lives_longer then
    state.until_ms = expires_at_ms
end
values[2] = packed(state)
redis.call('HSET', session_key, unpack(values))
redis.call('HINCRBY', session_key, 'references', 1)
-- There is no mirror to be told: whoever gives the session an owner forgets the plan.
if lives_longer then
    redis.call('PEXPIREAT', session_key, string.format('%d', expires_at_ms))
end
return { 'replayed', values[6], values[2] }
