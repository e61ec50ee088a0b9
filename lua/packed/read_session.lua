#!lua flags=no-writes
--[[
Purpose
    Read the state of a session, without its messages.
KEYS
    [1]  session  the session
ARGV
    none
Returns
    {now_ms, fields, state, owner, epoch, progress, plan, references, imported_last_packet_id, is_used, is_noted_used,
     *mirrors(mirror, outbox, outbox_version, outbox_ms)}
                  the server's time; fields of the hash; state as includes/packed_format describes it, empty for none;
                  fields of the session, progress that of its import, empty for none; whether the session was used since
                  its import, and whether that is noted: 1, or empty; with a mirror one row of its fields
Errors
    INVALID  1 key and no arguments are expected
Cost
    O(1); about 6 us.
]]
--- @include "includes/packed_import"
--- @include "includes/packed_state"
--- @include "includes/time"

local session_key = KEYS[1]
if #KEYS ~= 1 or #ARGV ~= 0 then
    return redis.error_reply('INVALID 1 key and no arguments are expected')
end
local text = redis.call('HGET', session_key, 's')
local fields = redis.call('HLEN', session_key)
-- Whoever reads the session gets a text that is no state as it is, to judge it.
local state = unpacked(text and #text == struct.size(STATE) and text)
local reply = { now_ms(), fields, text or '' }
local imported = import_of(session_key)
for index = 1, 6 do
    reply[3 + index] = imported[index] or ''
end
reply[10] = imported[4] and used_since(imported, state, fields) and '1' or ''
reply[11] = imported[8] or ''
if imported[9] then
    reply[12], reply[13], reply[14], reply[15] = unpack(
        redis.call('HMGET', session_key, 'mirror', 'outbox', 'outbox_version', 'outbox_ms')
    )
end
return reply
