#!lua flags=allow-oom
--[[
Purpose
    Put a message aside for a remedy, if it is still the one that the caller judged: it is kept in a field of its own
    until the session ends.
KEYS
    [1]  session        the session
ARGV
    [1]  epoch          of the session as the caller knows it; empty: the caller does not know owners
    [2]  serial         of the message
    [3]  packet_id      of the message, -1 for a record that is none
    [4]  expires_at_ms  of the message, -1 for none
    [5]  quarantined    field that takes the record
    [6]  twin           serial of an older message that this one repeats; empty: the caller has another reason
Returns
    1  it was put aside
    0  there is none, or another one, or it does not repeat the other one, or one of both has been released; nothing was
       written
Errors
    INVALID    an argument breaks the rules above
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(B) for a record of B bytes; about 10 us, and 1 us per 200 bytes.
]]
--- @include "includes/integers"
--- @include "includes/message_digest"
--- @include "includes/packed_content"
--- @include "includes/packed_state"
--- @include "includes/packed_write"

local session_key, epoch, serial, quarantined, twin = KEYS[1], ARGV[1], ARGV[2], ARGV[5], ARGV[6]
local packet_id, expires_at_ms = integer(ARGV[3]), integer(ARGV[4])
if #KEYS ~= 1 or #ARGV ~= 6 or not integer(serial) or not packet_id or not expires_at_ms
    or not string.find(quarantined, '^%D%S*$') or (twin ~= '' and not integer(twin))
then
    return redis.error_reply('INVALID 1 key, an epoch, 3 integers, a field and a serial are expected')
end
--- @include "includes/packed_guarded"
--- @include "includes/packed_same"
local record = redis.call('HGET', session_key, serial)
if not state or not is_same(record, packet_id, expires_at_ms) then
    return 0
end
if twin ~= '' then
    local other = redis.call('HGET', session_key, twin)
    local message, kept = content_of(record), other and content_of(other)
    -- A PUBREL has no payload any more, and belongs to an exchange under way.
    if not message or not kept or message.kind == 2 or kept.kind == 2
        or message_digest(message) ~= message_digest(kept)
    then
        return 0
    end
end
state.quarantined = state.quarantined + 1
state.others = state.others + 1 - redis.call('HEXISTS', session_key, quarantined)
redis.call('HSET', session_key, quarantined, record, 's', packed(state))
redis.call('HDEL', session_key, serial)
if owned and owned[4] then
    --- @include "includes/outbox"
    note_change(session_key, '*')
end
return 1
