#!lua flags=allow-oom
--[[
Purpose
    Move a record without a reference out of its session, so that its packet id is free, and keep it for a while.
KEYS
    [1]  messages        sorted set of references
    [2]  payload         key of the record
    [3]  orphan          its new name
ARGV
    [1]  keep_ms         longest time for which the record is kept; an earlier expiry stays
    [2]  expires_at_ms   expiry that it must have now, -1 for never
    [3]  grace_ms        a message younger than this is left alone, since its reference may be added soon
Returns
    1  the record was moved
    0  it has a reference, does not exist, is another or too young, or its new name is taken; nothing was written
Errors
    INVALID  3 keys, a life and a grace of 1 or more and an instant are expected
Cost
    O(log N + B) for N references and a record of B bytes; about 5 us, and 1 us per 100 bytes.
]]
--- @include "includes/message_facts"
--- @include "includes/time"

local messages_key, payload_key, orphan_key = KEYS[1], KEYS[2], KEYS[3]
local keep_ms, planned_ms, grace_ms = integer(ARGV[1]), integer(ARGV[2]), integer(ARGV[3])
if #KEYS ~= 3 or #ARGV ~= 3 or not keep_ms or keep_ms < 1 or not planned_ms or not grace_ms or grace_ms < 1 then
    return redis.error_reply('INVALID 3 keys, a life and a grace of 1 or more and an instant are expected')
end

if redis.call('ZSCORE', messages_key, payload_key) or redis.call('EXISTS', payload_key) == 0
    or redis.call('EXISTS', orphan_key) == 1
then
    return 0
end
local now, expires_at_ms = now_ms(), redis.call('PEXPIRETIME', payload_key)
-- MGET reads a key of another type as nothing.
local json = redis.call('MGET', payload_key)[1]
local facts = json and message_facts(json)
if expires_at_ms ~= planned_ms or (facts and facts.time_ms + grace_ms > now) then
    return 0
end
redis.call('RENAME', payload_key, orphan_key)
local until_ms = now + keep_ms
if expires_at_ms == -1 or expires_at_ms > until_ms then
    redis.call('PEXPIREAT', orphan_key, string.format('%d', until_ms))
end
return 1
