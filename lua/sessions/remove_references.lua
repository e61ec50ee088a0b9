#!lua flags=allow-oom
--[[
Purpose
    Remove references that name no key of their session, or whose messages have been moved elsewhere.
KEYS
    [1]  messages        sorted set of references
ARGV
    [1+] references      a pair per reference: member, and the score that it must have
Returns
    removed
Errors
    INVALID  members and scores do not pair, or there are too many
Cost
    O(M log N) for M members and N references; about 1 us per member. At most 500 members.
]]
local PAIRS_PER_CALL = 500
local FIRST_PAIR = 1

local count = #ARGV / 2
if #KEYS ~= 1 or count < 1 or count % 1 ~= 0 or count > PAIRS_PER_CALL then
    return redis.error_reply('INVALID 1 key and 1 to ' .. PAIRS_PER_CALL .. ' pairs are expected')
end

local going = {}
for at = FIRST_PAIR, #ARGV, 2 do
    local score = redis.call('ZSCORE', KEYS[1], ARGV[at])
    if score and tonumber(score) == tonumber(ARGV[at + 1]) then
        going[#going + 1] = ARGV[at]
    end
end
if #going == 0 then
    return 0
end
-- While a cluster moves a slot, a script must not touch a key again that it has emptied.
return redis.call('ZREM', KEYS[1], unpack(going))
