#!lua flags=no-writes
--[[
Purpose
    Say which messages have expired, though references may still lead to them.
KEYS
    [1+] payloads        keys of messages of one session
ARGV
    none
Returns
    {*positions}  positions of the keys that do not exist, from 0
Errors
    INVALID  there are arguments, no payload keys or too many
Cost
    O(M) for M payload keys; about 0.5 us per key. At most 1,000 keys.
]]
local PAYLOAD_KEYS_PER_CALL = 1000
local FIRST_PAYLOAD = 1

local count = #KEYS - FIRST_PAYLOAD + 1
if count < 1 or count > PAYLOAD_KEYS_PER_CALL or #ARGV ~= 0 then
    return redis.error_reply('INVALID 1 to ' .. PAYLOAD_KEYS_PER_CALL .. ' payload keys are expected')
end

local missing = {}
for position = 1, count do
    if redis.call('EXISTS', KEYS[FIRST_PAYLOAD - 1 + position]) == 0 then
        missing[#missing + 1] = position - 1
    end
end
return missing
