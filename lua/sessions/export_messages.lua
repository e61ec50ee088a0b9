#!lua flags=no-writes
--[[
Purpose
    Read messages with the instants at which they expire, for a comparison with their source.
KEYS
    [1+] payload         keys of messages of one session
ARGV
    none
Returns
    {json, pexpiretime, ...}  two values per key, in order: JSON, or empty when there is none; instant in ms,
                              -1 without expiry, -2 for a key that does not exist
Errors
    INVALID  there are arguments, no keys or too many keys
Cost
    O(M) for M keys; about 2 us per key. At most 500 keys.
]]
local PAYLOAD_KEYS_PER_CALL = 500

if #KEYS < 1 or #KEYS > PAYLOAD_KEYS_PER_CALL or #ARGV ~= 0 then
    return redis.error_reply('INVALID 1 to ' .. PAYLOAD_KEYS_PER_CALL .. ' keys and no arguments are expected')
end

local reply = {}
for index, json in ipairs(redis.call('MGET', unpack(KEYS))) do
    reply[2 * index - 1] = json or ''
    reply[2 * index] = redis.call('PEXPIRETIME', KEYS[index])
end
return reply
