#!lua flags=allow-oom
--[[
Purpose
    Cancel a message that was published for later and is not due yet: no consumer gets it.
KEYS
    [1-5]  state, messages, references, expiries, held
    [6+] delayed_sets    the delayed set of each member
ARGV
    [1]  membership      number of the membership that the caller knows
    [2]  id              the message
    [3]  now_ms          instant; empty: the server's time
Returns
    cancelled            1; 0 when it is due, or there is no such message: nothing has changed
Errors
    INVALID  an argument breaks the rules above
    VERSION  the membership is another one; the sentence ends with its number
Cost
    O(N log L) for N members and L messages that wait for their time, and O(H) for H held ones when it is held; about
    20 us for one member, 3 us per further one.
]]
--- @include "includes/instant"
--- @include "includes/fanout_ids"
--- @include "includes/fanout_remove"

local FIRST_KEY = 6

local keys = { state = KEYS[1], messages = KEYS[2], references = KEYS[3], expiries = KEYS[4] }
local membership, id, now = integer(ARGV[1]), ARGV[2], instant(ARGV[3] or '-')
if #KEYS < FIRST_KEY - 1 or #ARGV ~= 3 or not membership or not are_ids({ id }, 1) or not now then
    return redis.error_reply('INVALID keys of members, the number of their membership, an id and now are expected')
end
local known = redis.call('HGET', keys.state, 'membership') or '0'
if known ~= ARGV[1] then
    return redis.error_reply('VERSION the membership is now ' .. known)
end
local due = string.match(redis.call('HGET', keys.messages, id) or '', '^(%d+):')
if not due or tonumber(due) <= now then
    return 0
end
local found = 0
for _, key in ipairs({ unpack(KEYS, FIRST_KEY) }) do
    found = found + redis.call('ZREM', key, id)
end
if found == 0 then
    redis.call('LREM', KEYS[5], 0, id)
end
redis.call('HINCRBY', keys.state, 'cancelled', 1)
remove(keys, { id }, 0)
return 1
