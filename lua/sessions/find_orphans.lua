#!lua flags=no-writes
--[[
Purpose
    Find payload keys that no reference of their session names.
KEYS
    [1]  messages        sorted set of references
    [2+] payloads        keys of messages
ARGV
    none
Returns
    {*expiries}  one number per payload key: instant in ms at which it expires, -1 for never; -2 when it has a
                     reference or does not exist
Errors
    INVALID  there are arguments, no payload keys or too many
Cost
    O(M) for M payload keys; about 1 us per key. At most 1,000 keys.
]]
local FIRST_PAYLOAD = 2
--- @include "includes/payloads_only"

-- If the set's key has another type, there are no references.
local is_set = redis.call('TYPE', KEYS[1]).ok == 'zset'
local scores = is_set and redis.call('ZMSCORE', KEYS[1], unpack(KEYS, FIRST_PAYLOAD)) or {}
local found = {}
for position = 1, count do
    found[position] = scores[position] and -2 or redis.call('PEXPIRETIME', KEYS[FIRST_PAYLOAD - 1 + position])
end
return found
