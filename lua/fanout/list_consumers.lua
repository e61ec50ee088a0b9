#!lua flags=no-writes
--[[
Purpose
    List the members of a queue, for publishers and for callers that need the keys of a consumer.
KEYS
    [1-4]  state, options, consumers, cursors
ARGV
    none
Returns
    {membership, now_ms, *members(consumer, options, last_seen_ms, cursor)}
                         number of the membership, 0 for an unknown queue; the server's time; four values per consumer,
                         in no order, the last its cursor in the log, -1 without one. A consumer with the mode
                         "leaving" is not a member
Errors
    INVALID  4 keys and no arguments are expected
Cost
    O(C) for C members, at most 1,000; about 1 us per member.
]]
--- @include "includes/time"

if #KEYS ~= 4 or #ARGV ~= 0 then
    return redis.error_reply('INVALID 4 keys and no arguments are expected')
end
local found = { tonumber(redis.call('HGET', KEYS[1], 'membership')) or 0, now_ms() }
local pairs_of_options = redis.call('HGETALL', KEYS[2])
for index = 1, #pairs_of_options, 2 do
    local size = #found
    found[size + 1] = pairs_of_options[index]
    found[size + 2] = pairs_of_options[index + 1]
    found[size + 3] = tonumber(redis.call('ZSCORE', KEYS[3], pairs_of_options[index])) or 0
    found[size + 4] = tonumber(redis.call('ZSCORE', KEYS[4], pairs_of_options[index]) or -1)
end
return found
