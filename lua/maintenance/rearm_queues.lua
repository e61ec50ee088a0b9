#!lua flags=allow-oom
--[[
Purpose
    Record when collected queues are due again. A queue that was registered for an earlier instant meanwhile, or is not
    registered, stays as it is; a collector that has lost its lock changes nothing.
KEYS
    [1]  due         registry: client ids by the time at which collection is due
    [2]  collector   collector of this part
ARGV
    [1]  token       name of the collector
    [2+] queues      three per queue: the queue, the time in ms at which it was due when it was read, and the time at
                     which it is due again
Returns
    rearmed  number of queues that were changed
Errors
    INVALID  queues and times do not match, there are too many, or a time is not an integer of 0 or more
    STALE    another collector holds the registry now
Cost
    O(M log N) for M queues of N; about 2 us per queue. At most 200 queues.
]]
local QUEUES_PER_CALL = 200
local FIRST_TRIPLE = 2
--- @include "includes/integers"

local due_key, collector_key = KEYS[1], KEYS[2]
local token = ARGV[1]
local count = (#ARGV - FIRST_TRIPLE + 1) / 3
if #KEYS ~= 2 or count < 1 or count > QUEUES_PER_CALL or count ~= math.floor(count) then
    return redis.error_reply('INVALID 2 keys, a token, and 1 to ' .. QUEUES_PER_CALL .. ' queues are expected')
end
for position = FIRST_TRIPLE, #ARGV, 3 do
    local seen_ms, due_ms = integer(ARGV[position + 1]), integer(ARGV[position + 2])
    if not seen_ms or seen_ms < 0 or not due_ms or due_ms < 0 then
        return redis.error_reply('INVALID time of a queue is not an integer of 0 or more')
    end
end
if redis.call('HGET', collector_key, 'token') ~= token then
    return redis.error_reply('STALE another collector holds this part of the registry')
end

local rearmed = 0
for position = FIRST_TRIPLE, #ARGV, 3 do
    local client_id, seen_ms, due_ms = ARGV[position], integer(ARGV[position + 1]), integer(ARGV[position + 2])
    local known_ms = tonumber(redis.call('ZSCORE', due_key, client_id) or '-1')
    if known_ms == seen_ms then
        -- Only existing members are written, so that queues on a full server are collected, too.
        redis.call('ZINCRBY', due_key, string.format('%d', due_ms - seen_ms), client_id)
        rearmed = rearmed + 1
    end
end
return rearmed
