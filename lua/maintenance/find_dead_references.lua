#!lua flags=no-writes
--[[
Purpose
    Find references of a session whose message is gone, and messages that would never expire.
KEYS
    [1]  messages        sorted set of references
    [2+] payloads        keys of messages that are referred to
ARGV
    none
Returns
    {dead, lasting, bytes}  positions from 0, as text with commas, of the payload keys that do not exist and of those
                            without expiry; the dead references' share of the set's memory
Errors
    INVALID  there are arguments, no payload keys or too many
Cost
    O(M) for M payload keys; about 1 us per key. At most 1,000 keys.
]]
local FIRST_PAYLOAD = 2
--- @include "includes/payloads_only"

local dead, lasting = {}, {}
for position = 0, count - 1 do
    local expires_at_ms = redis.call('PEXPIRETIME', KEYS[FIRST_PAYLOAD + position])
    if expires_at_ms == -2 then
        dead[#dead + 1] = position
    elseif expires_at_ms == -1 then
        lasting[#lasting + 1] = position
    end
end
local references = #dead > 0 and redis.call('ZCARD', KEYS[1]) or 0
local bytes = references > 0 and redis.call('MEMORY', 'USAGE', KEYS[1]) * #dead / references or 0
return { table.concat(dead, ','), table.concat(lasting, ','), math.floor(bytes) }
