#!lua flags=allow-oom
--[[
Purpose
    Remove the expiry of keys, if it still is the one that was set.
KEYS
    [1+] keys            keys of one session
ARGV
    [1+] instants_ms     the expiry that each key must have
Returns
    persisted
Errors
    INVALID  keys and instants do not pair, or there are too many
Cost
    O(M) for M keys; about 1 us per key. At most 1,000 keys.
]]
local KEYS_PER_CALL = 1000
local FIRST_KEY = 1
local FIRST_EXPIRY = 1

local count = #KEYS
if count < 1 or count > KEYS_PER_CALL or #ARGV ~= count then
    return redis.error_reply('INVALID 1 to ' .. KEYS_PER_CALL .. ' keys and an instant for each are expected')
end

local persisted = 0
for position = 0, count - 1 do
    local key = KEYS[FIRST_KEY + position]
    if string.format('%d', redis.call('PEXPIRETIME', key)) == ARGV[FIRST_EXPIRY + position] then
        persisted = persisted + redis.call('PERSIST', key)
    end
end
return persisted
