#!lua
--[[
Purpose
    Put references back into their set that a cleanup has removed. A member that exists belongs to a newer message and
    stays as it is.
KEYS
    [1]  messages        sorted set of references
ARGV
    [1+] references      a pair per reference: its score, and the member
Returns
    restored             references put back; -1 when the key is of another type now, and nothing was written
Errors
    INVALID  there are no pairs, or too many
Cost
    O(M log N) for M pairs and N references; about 2 us per pair. At most 1,000 pairs.
]]
local PAIRS_PER_CALL = 1000

local count = #ARGV / 2
if #KEYS ~= 1 or count < 1 or count % 1 ~= 0 or count > PAIRS_PER_CALL then
    return redis.error_reply('INVALID 1 key and 1 to ' .. PAIRS_PER_CALL .. ' pairs are expected')
end

local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'zset' and kind ~= 'none' then
    return -1
end
return redis.call('ZADD', KEYS[1], 'NX', unpack(ARGV))
