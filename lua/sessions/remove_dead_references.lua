#!lua flags=allow-oom
--[[
Purpose
    Remove the references whose messages have expired. The caller lists references and calls page by page; the last page
    of a whole session records when the next message expires, so that saves need no sweep before.
KEYS
    [1]  messages        sorted set of references
    [2]  session         fields of the session
    [3+] payloads        keys of messages that are referred to; none for an empty page
ARGV
    [1]  epoch               of the session as the caller knows it; empty: the caller does not know owners
    [2]  earliest_expiry_ms  earliest instant that earlier pages have returned; empty for none
    [3]  complete_for        saved_last_packet_id as read before the first page, when this is the last page of the
                             whole session; else empty
Returns
    {removed, earliest_expiry_ms}  references removed by this call; earliest instant at which a message of this page
                                   or of the pages before expires, as text, empty when none does
Errors
    INVALID    an argument is not an integer, or there are too many payload keys
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(M log N) for M payload keys and N references; about 1 us per key. At most 1,000 keys.
]]
--- @include "includes/guard"
--- @include "includes/integers"
--- @include "includes/session_counters"

local PAYLOAD_KEYS_PER_CALL = 1000
local FIRST_PAYLOAD = 3
local MAX_INTEGER = 9007199254740992

local messages_key, session_key = KEYS[1], KEYS[2]
local epoch, complete_for = ARGV[1], ARGV[3]
local earliest = integer(ARGV[2])
if #KEYS < FIRST_PAYLOAD - 1 or #ARGV ~= 3 then
    return redis.error_reply('INVALID 2 keys, payload keys and 3 arguments are expected')
end
if #KEYS - FIRST_PAYLOAD + 1 > PAYLOAD_KEYS_PER_CALL then
    return redis.error_reply('INVALID a call takes at most ' .. PAYLOAD_KEYS_PER_CALL .. ' payload keys')
end
if ARGV[2] ~= '' and not earliest then
    return redis.error_reply('INVALID earliest expiry is not an integer')
end

-- Messages expire in the other store, too, so nothing is recorded for a mirror. If the session's key has another type,
-- this fails before anything is written.
local fields = redis.call('HMGET', session_key, 'owner', 'import', 'epoch', 'saved_last_packet_id')
local refused_reply = refusal(fields, epoch)
if refused_reply then
    return refused_reply
end
local dead = {}
for index = FIRST_PAYLOAD, #KEYS do
    local expires_at_ms = redis.call('PEXPIRETIME', KEYS[index])
    if expires_at_ms == -2 then
        dead[#dead + 1] = KEYS[index]
    elseif expires_at_ms ~= -1 and (not earliest or expires_at_ms < earliest) then
        earliest = expires_at_ms
    end
end
local removed = 0
if #dead > 0 then
    removed = redis.call('ZREM', messages_key, unpack(dead))
    count_in_session(session_key, 'expired', removed)
end
-- A save since the first page has changed saved_last_packet_id, and may have added an earlier expiry.
if complete_for ~= '' and fields[4] == complete_for then
    redis.call('HSET', session_key, 'earliest_expiry_ms', string.format('%d', earliest or MAX_INTEGER))
end
return { removed, earliest and string.format('%d', earliest) or '' }
