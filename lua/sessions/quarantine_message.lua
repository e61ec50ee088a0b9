#!lua flags=allow-oom
--[[
Purpose
    Move a record that cannot be read out of its session and keep it under another name, whatever its type.
KEYS
    [1]  messages        sorted set of references
    [2]  session         fields of the session
    [3]  payload         key of the record
    [4]  quarantined     its new name
ARGV
    [1]  epoch           of the session as the caller knows it; empty: the caller does not know owners
    [2]  serial          serial of the reference
    [3]  keep_ms         expiry of a record that has none
    [4]  client_id       a message of this client under its own packet id stays; empty: any record is moved
Returns
    1  the record was moved and its reference removed
    0  there is no such record, its reference has another serial, its new name is taken, or it is a message that
       stays; nothing was written
Errors
    INVALID    an argument is not an integer, or the life is not 1 or more
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(log N + B) for N references and a record of B bytes; about 6 us, and 1 us per 100 bytes that are judged.
]]
--- @include "includes/message_facts"
--- @include "includes/outbox"
--- @include "includes/serial_runs"
--- @include "includes/session_counters"

local messages_key, session_key, payload_key, quarantined_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local epoch, serial, keep_ms = ARGV[1], integer(ARGV[2]), integer(ARGV[3])
if #KEYS ~= 4 or #ARGV ~= 4 or not serial then
    return redis.error_reply('INVALID 4 keys, an epoch, a serial, a life and a client id are expected')
end
if not keep_ms or keep_ms < 1 then
    return redis.error_reply('INVALID life of the record is not an integer of 1 or more')
end

--- @include "includes/guarded"
local score = redis.call('ZSCORE', messages_key, payload_key)
if not score or tonumber(score) ~= serial or redis.call('EXISTS', payload_key) == 0
    or redis.call('EXISTS', quarantined_key) == 1
then
    return 0
end
if ARGV[4] ~= '' then
    -- MGET reads a key of another type as nothing.
    local json = redis.call('MGET', payload_key)[1]
    local facts = json and message_facts(json)
    if facts and facts.client_id == ARGV[4]
        and string.match(payload_key, '_(%d+)$') == string.format('%d', facts.packet_id)
    then
        return 0
    end
end
redis.call('RENAME', payload_key, quarantined_key)
if redis.call('PEXPIRETIME', quarantined_key) == -1 then
    redis.call('PEXPIRE', quarantined_key, ARGV[3])
end
if fields[4] then
    note_change(session_key, serial_runs({ score }))
end
redis.call('ZREM', messages_key, payload_key)
count_in_session(session_key, 'quarantined', 1)
return 1
