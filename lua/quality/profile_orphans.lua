#!lua flags=no-writes
--[[
Purpose
    Tell which messages of a session nobody refers to. Both are looked at in one instant, so that a message that is
    being stored or acknowledged is none.
KEYS
    [1]  messages        sorted set of references
    [2+] payload         keys of messages of the session
ARGV
    none
Returns
    {orphan, ...}  1 or 0 per payload key, in order: 1 when it exists and is no member of the set
Errors
    INVALID  there are arguments, no payload keys or too many
Cost
    O(M) for M keys; about 1 us per key. At most 999 payload keys.
]]
local FIRST_PAYLOAD = 2
local KEYS_PER_CALL = 1000

local messages_key = KEYS[1]
if #KEYS < FIRST_PAYLOAD or #KEYS > KEYS_PER_CALL or #ARGV ~= 0 then
    return redis.error_reply('INVALID 2 to ' .. KEYS_PER_CALL .. ' keys and no arguments are expected')
end

-- Where something else lies under the name of the set, there are no references.
local is_set = redis.call('TYPE', messages_key).ok == 'zset'
local reply = {}
for index = FIRST_PAYLOAD, #KEYS do
    local key = KEYS[index]
    local referred = is_set and redis.call('ZSCORE', messages_key, key)
    reply[index - FIRST_PAYLOAD + 1] = (not referred and redis.call('PEXPIRETIME', key) ~= -2) and 1 or 0
end
return reply
