#!lua flags=allow-oom
--[[
Purpose
    Release a part of the registry of compacted queues, and record the facts of its collection if it is finished.
KEYS
    [1]  collector   collector of this part, and facts of its last collection
ARGV
    [1]  token       name of the collector
    [2+] fields      names and values of facts about a finished collection, alternately; none if it was interrupted
Returns
    1  released
    0  another collector holds it now: nothing was recorded
Errors
    INVALID  facts do not pair, or there are too many
Cost
    O(M) for M facts; about 5 us. At most 20 facts.
]]
local FACTS_PER_CALL = 20
local FIRST_PAIR = 2

local collector_key = KEYS[1]
local token = ARGV[1]
local count = (#ARGV - FIRST_PAIR + 1) / 2
if #KEYS ~= 1 or count < 0 or count > FACTS_PER_CALL or count ~= math.floor(count) then
    return redis.error_reply('INVALID 1 key, a token and up to ' .. FACTS_PER_CALL .. ' facts are expected')
end

if redis.call('HGET', collector_key, 'token') ~= token then
    return 0
end
if count > 0 then
    redis.call('HSET', collector_key, unpack(ARGV, FIRST_PAIR))
end
redis.call('HDEL', collector_key, 'token', 'lease_until_ms')
return 1
