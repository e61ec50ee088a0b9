#!lua flags=allow-oom
--[[
Purpose
    Move a message that duplicates an earlier one out of its session, and keep it under another name.
KEYS
    [1]  messages        sorted set of references
    [2]  session         fields of the session
    [3]  kept            key of the message that stays
    [4]  payload         key of the message that is moved
    [5]  quarantined     its new name
ARGV
    [1]  kept_serial     serial of the message that stays
    [2]  serial          serial of the message that is moved; greater
    [3]  keep_ms         expiry of a record that has none
    [4]  tolerance_ms    by how much the message that stays may expire earlier than the one that is moved
Returns
    1  the message was moved and its reference removed
    0  one of the two is another message now, has been released, or they differ; the one that stays expires too early,
       or the new name is taken; nothing was written
Errors
    INVALID  an argument breaks the rules above
Cost
    O(log N + B) for N references and records of B bytes; about 30 us for records of 1 KB.
]]
--- @include "includes/message_digest"
--- @include "includes/message_facts"
--- @include "includes/mirrored"
--- @include "includes/session_counters"

local messages_key, session_key, kept_key, payload_key, quarantined_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local kept_serial, serial, keep_ms = integer(ARGV[1]), integer(ARGV[2]), integer(ARGV[3])
local tolerance_ms = integer(ARGV[4])
if #KEYS ~= 5 or #ARGV ~= 4 or not kept_serial or not serial or serial <= kept_serial then
    return redis.error_reply('INVALID 5 keys, two serials in their order, a life and a tolerance are expected')
end
if not keep_ms or keep_ms < 1 then
    return redis.error_reply('INVALID life of the record is not an integer of 1 or more')
end
if not tolerance_ms or tolerance_ms < 0 then
    return redis.error_reply('INVALID tolerance is not an integer of 0 or more')
end

local scores = redis.call('ZMSCORE', messages_key, kept_key, payload_key)
if not scores[1] or not scores[2] or tonumber(scores[1]) ~= kept_serial or tonumber(scores[2]) ~= serial
    or redis.call('EXISTS', quarantined_key) == 1
then
    return 0
end
local records = redis.call('MGET', kept_key, payload_key)
local kept = records[1] and message_facts(records[1])
local going = records[2] and message_facts(records[2])
if not kept or not going or kept.packet_type ~= 'PUBLISH' or going.packet_type ~= 'PUBLISH'
    or message_digest(kept) ~= message_digest(going)
then
    return 0
end
local kept_until_ms, until_ms = redis.call('PEXPIRETIME', kept_key), redis.call('PEXPIRETIME', payload_key)
if kept_until_ms ~= -1 and (until_ms == -1 or kept_until_ms + tolerance_ms < until_ms) then
    return 0
end
note_all(session_key)
redis.call('RENAME', payload_key, quarantined_key)
if redis.call('PEXPIRETIME', quarantined_key) == -1 then
    redis.call('PEXPIRE', quarantined_key, ARGV[3])
end
redis.call('ZREM', messages_key, payload_key)
count_in_session(session_key, 'quarantined', 1)
return 1
