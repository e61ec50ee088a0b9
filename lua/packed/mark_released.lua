#!lua flags=allow-oom
--[[
Purpose
    Record that the client has sent PUBREC: the record becomes PUBREL and loses its body; its place and expiry stay.
KEYS
    [1]  session    the session
ARGV
    [1]  epoch      of the session as the caller knows it; empty: the caller does not know owners
    [2]  packet_id  of the message
    [3]  serial     serial of the message; empty: any
Returns
    "released"    the record is PUBREL now
    "already"     it was before; nothing was written
    "missing"     no message, or one of another serial, or an expired one; nothing was written
    "unreadable"  the record is none; nothing was written
    "elsewhere"   without a serial: it may be an older message; the caller looks through these and calls again
Errors
    INVALID    the packet id is no integer, or the serial is neither one nor empty
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(B) for a record of B bytes; about 6 us, and 1 us per 2 KB.
]]
--- @include "includes/integers"
--- @include "includes/packed_head"
--- @include "includes/packed_places"
--- @include "includes/packed_state"
--- @include "includes/packed_write"
--- @include "includes/time"

local session_key, epoch = KEYS[1], ARGV[1]
local packet_id, serial = integer(ARGV[2]), integer(ARGV[3])
if #KEYS ~= 1 or #ARGV ~= 3 or not packet_id or (ARGV[3] ~= '' and not serial) then
    return redis.error_reply('INVALID 1 key, an epoch, a packet id and a serial, an integer or empty, are expected')
end
--- @include "includes/packed_guarded"
if not state then
    return 'missing'
end
local found, elsewhere = places(session_key, state)(packet_id, serial)
if not found then
    return elsewhere and 'elsewhere' or 'missing'
end
local field = string.format('%d', found)
local record = redis.call('HGET', session_key, field)
if not record then
    return 'missing'
end
if #record < HEAD_BYTES then
    return 'unreadable'
end
local _, expires_at_ms, kind, bytes = struct.unpack(HEAD, record)
if expires_at_ms <= now_ms() then
    return 'missing'
end
if kind == 2 then
    return 'already'
end
if kind ~= 1 or #record < HEAD_BYTES + bytes then
    return 'unreadable'
end
record = struct.pack(HEAD, packet_id, expires_at_ms, 2, bytes) .. string.sub(record, HEAD_BYTES + 1, HEAD_BYTES + bytes)
if redis.call('HEXISTS', session_key, 'plan') == 1 and redis.call('HEXISTS', session_key, 'used') == 0 then
    -- Nothing else of an imported session shows that it was used.
    state.others = state.others + 1
    redis.call('HSET', session_key, field, record, 'used', '1', 's', packed(state))
else
    redis.call('HSET', session_key, field, record)
end
if owned and owned[4] then
    --- @include "includes/outbox"
    note_change(session_key, field)
end
return 'released'
