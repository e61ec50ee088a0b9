#!lua flags=no-writes
--[[
Purpose
    Find messages that have expired, though references may still name them.
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
local FIRST_PAYLOAD = 1
--- @include "includes/payloads_only"

local missing = {}
for position = 1, count do
    if redis.call('EXISTS', KEYS[FIRST_PAYLOAD - 1 + position]) == 0 then
        missing[#missing + 1] = position - 1
    end
end
return missing
