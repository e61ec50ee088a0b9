#!lua
--[[
Purpose
    Add compacted queues to the registry, which tells the collector when to look at each. The registry is only a hint:
    what is due is decided by the queue's own keys.
KEYS
    [1]  registry        sorted set of client ids by the time at which each is due
ARGV
    [1]  now             milliseconds since 1970; empty for the server's time
    [2]  which           new: queues that are not registered yet; earlier: also those that are due later than now
    [3+] client_ids      client of a queue
Returns
    noted  queues that the registry did not have
Errors
    INVALID  the time is not a time, which is neither word, or there are no client ids or too many
Cost
    O(M log N) for M client ids and N queues in the set. At most 1,000 client ids.
]]
--- @include "includes/integers"
--- @include "includes/time"

local CLIENT_IDS_PER_CALL = 1000
local FIRST_CLIENT_ID = 3

local count = #ARGV - FIRST_CLIENT_ID + 1
local now = ARGV[1] == '' and now_ms() or integer(ARGV[1])
if #KEYS ~= 1 or not now or now < 0 or count < 1 or count > CLIENT_IDS_PER_CALL then
    return redis.error_reply(
        'INVALID one key, a time, which queues to note and 1 to ' .. CLIENT_IDS_PER_CALL .. ' client ids are expected'
    )
end
local option = ({ new = 'NX', earlier = 'LT' })[ARGV[2]]
if not option then
    return redis.error_reply('INVALID which queues to note: it must be new or earlier')
end

local due = string.format('%.0f', now)
local noted = 0
for index = FIRST_CLIENT_ID, #ARGV do
    noted = noted + redis.call('ZADD', KEYS[1], option, due, ARGV[index])
end
return noted
