#!lua flags=allow-oom
--[[
Purpose
    Give a queue its own retention, or remove it. The queue is created if it does not exist. A full server runs this,
    too, since a shorter retention makes room.
KEYS
    [1-2]  state, order
ARGV
    [1]  policy          delete, acked_only or compact; empty: the collector's retention applies again
    [2]  retention_ms    0 or more; empty together with the policy
    [3]  tombstone_ms    0 or more; empty together with the policy
Returns
    1  the queue has its own retention
    0  it has none
Errors
    INVALID  an argument breaks the rules above
    LAYOUT   the queue was written by a later version
Cost
    O(1); about 10 us.
]]
--- @include "includes/create_queue"
--- @include "includes/integers"
--- @include "includes/is_policy"

local state_key, order_key, policy, retention_text, tombstone_text = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
if #KEYS ~= 2 or #ARGV ~= 3 then
    return redis.error_reply('INVALID 2 keys and 3 arguments are expected')
end
local is_none = policy == '' and retention_text == '' and tombstone_text == ''
if not is_none and not is_policy(policy, integer(retention_text), integer(tombstone_text)) then
    return redis.error_reply('INVALID the retention is none')
end
local fields = redis.call('HMGET', state_key, 'version', 'incarnation')
if fields[1] and fields[1] ~= '1' then
    return redis.error_reply('LAYOUT the queue has layout ' .. fields[1])
end

if not fields[2] then
    create_queue(state_key, highest_sequence(order_key))
end
if is_none then
    redis.call('HDEL', state_key, 'retention_policy', 'retention_ms', 'tombstone_ms')
    return 0
end
redis.call(
    'HSET', state_key, 'retention_policy', policy, 'retention_ms', retention_text, 'tombstone_ms', tombstone_text
)
return 1
