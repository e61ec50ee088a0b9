#!lua
--[[
Purpose
    Put a quarantined record back under its own name, and into its session at its old place.
KEYS
    [1]  messages        sorted set of references
    [2]  session         fields of the session
    [3]  aside           name under which the record is kept
    [4]  payload         name that it gets; ends with its packet id
ARGV
    [1]  serial          serial of its reference; empty: it gets none
    [2]  expires_at_ms   new expiry of the record, -1 for never; empty: it stays as it is
    [3]  client_id       client that the record must name, readable and with the packet id of its key; empty: any record
Returns
    "restored"    the record is back
    "missing"     no record is kept under this name; nothing was written
    "occupied"    its name, its reference or its serial is in use; nothing was written
    "unreadable"  it is not a message of this client and packet id; nothing was written
Errors
    INVALID  serial or expiry breaks the rules above
Cost
    O(log N + B) for N references and a record of B bytes; about 10 us, and 1 us per 100 bytes that are judged.
]]
--- @include "includes/message_facts"
--- @include "includes/earliest_expiry"
--- @include "includes/mirrored"

local messages_key, session_key, aside_key, payload_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local serial, expires_at_ms, client_id = ARGV[1], ARGV[2], ARGV[3]
if #KEYS ~= 4 or #ARGV ~= 3 or (serial ~= '' and not integer(serial)) then
    return redis.error_reply('INVALID 4 keys, a serial, an expiry and a client id are expected')
end
if expires_at_ms ~= '' and (not integer(expires_at_ms) or integer(expires_at_ms) < -1) then
    return redis.error_reply('INVALID expiry is neither an instant nor -1')
end

if redis.call('EXISTS', aside_key) == 0 then
    return 'missing'
end
if redis.call('EXISTS', payload_key) == 1 or redis.call('ZSCORE', messages_key, payload_key)
    or (serial ~= '' and redis.call('ZRANGE', messages_key, serial, serial, 'BYSCORE', 'LIMIT', '0', '1')[1])
then
    return 'occupied'
end
if client_id ~= '' then
    local json = redis.call('MGET', aside_key)[1]
    local facts = json and message_facts(json)
    if not facts or facts.client_id ~= client_id
        or string.match(payload_key, '_(%d+)$') ~= string.format('%d', facts.packet_id)
    then
        return 'unreadable'
    end
end
if serial ~= '' then
    redis.call('ZADD', messages_key, serial, payload_key)
end
redis.call('RENAME', aside_key, payload_key)
if expires_at_ms == '-1' then
    redis.call('PERSIST', payload_key)
elseif expires_at_ms ~= '' then
    redis.call('PEXPIREAT', payload_key, expires_at_ms)
end
note_all(session_key)
note_expiry(session_key, redis.call('PEXPIRETIME', payload_key))
return 'restored'
