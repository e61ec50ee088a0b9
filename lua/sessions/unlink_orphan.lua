#!lua flags=allow-oom
--[[
Purpose
    Take a record that no reference names out of its session, so that its packet id is free, and keep it for a while.
KEYS
    [1]  messages        sorted set of references
    [2]  payload         key of the record
    [3]  orphan          its new name
ARGV
    [1]  keep_ms         most that the record is kept; one that expires earlier does so
Returns
    1  the record was moved
    0  a reference names it, there is none, or its new name is taken; nothing was written
Errors
    INVALID  3 keys and a life of 1 or more are expected
Cost
    O(log N) for N references; about 5 us.
]]
--- @include "includes/integers"
--- @include "includes/time"

local messages_key, payload_key, orphan_key = KEYS[1], KEYS[2], KEYS[3]
local keep_ms = integer(ARGV[1])
if #KEYS ~= 3 or #ARGV ~= 1 or not keep_ms or keep_ms < 1 then
    return redis.error_reply('INVALID 3 keys and a life of 1 or more are expected')
end

if redis.call('ZSCORE', messages_key, payload_key) or redis.call('EXISTS', payload_key) == 0
    or redis.call('EXISTS', orphan_key) == 1
then
    return 0
end
redis.call('RENAME', payload_key, orphan_key)
local until_ms = now_ms() + keep_ms
local expires_at_ms = redis.call('PEXPIRETIME', orphan_key)
if expires_at_ms == -1 or expires_at_ms > until_ms then
    redis.call('PEXPIREAT', orphan_key, string.format('%d', until_ms))
end
return 1
