#!lua flags=no-writes
--[[
Purpose
    List the members of a queue, for publishers and for callers that need the keys of a consumer.
KEYS
    [1-3]  state, options, consumers
ARGV
    none
Returns
    {membership, now_ms, *members(consumer, options, last_seen_ms)}
                         number of the membership, 0 for an unknown queue; the server's time; three values per consumer,
                         in no order. A consumer with the mode "leaving" is not a member
Errors
    INVALID  3 keys and no arguments are expected
Cost
    O(C) for C members, at most 1,000; about 1 us per member.
]]
--- @include "includes/time"

if #KEYS ~= 3 or #ARGV ~= 0 then
    return redis.error_reply('INVALID 3 keys and no arguments are expected')
end
local found = { tonumber(redis.call('HGET', KEYS[1], 'membership')) or 0, now_ms() }
local pairs_of_options = redis.call('HGETALL', KEYS[2])
for index = 1, #pairs_of_options, 2 do
    local size = #found
    found[size + 1] = pairs_of_options[index]
    found[size + 2] = pairs_of_options[index + 1]
    found[size + 3] = tonumber(redis.call('ZSCORE', KEYS[3], pairs_of_options[index])) or 0
end
return found
