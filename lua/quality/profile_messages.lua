#!lua flags=no-writes
--[[
Purpose
    Measure messages without reading them: when they expire and how long their records are.
KEYS
    [1]  messages        sorted set of references
    [2+] payloads        keys of messages that were referred to
ARGV
    none
Returns
    {*records(pexpiretime, bytes)}
                               two numbers per payload key, in order: expiry in ms, -1 without expiry, -2 for a key
                               that does not exist, -3 when it was acknowledged, so that its reference is gone, too;
                               length of the record, 0 without one, -1 for a key of another type
Errors
    INVALID  there are arguments, no payload keys or too many
Cost
    O(M) for M payload keys; about 3 us per key. At most 1000 keys.
]]
local FIRST_PAYLOAD = 2
local PAYLOAD_KEYS_PER_CALL = 1000
local MISSING, CONFIRMED = -2, -3

local messages_key = KEYS[1]
local count = #KEYS - FIRST_PAYLOAD + 1
if count < 1 or count > PAYLOAD_KEYS_PER_CALL or #ARGV ~= 0 then
    return redis.error_reply('INVALID 1 key and 1 to ' .. PAYLOAD_KEYS_PER_CALL .. ' payload keys are expected')
end

-- The references were read earlier, and brokers may have changed them since.
local function is_referred_to(key)
    return redis.call('TYPE', messages_key).ok == 'zset' and redis.call('ZMSCORE', messages_key, key)[1]
end

local reply = {}
for index = 1, count do
    local key = KEYS[FIRST_PAYLOAD - 1 + index]
    local expires_at_ms = redis.call('PEXPIRETIME', key)
    local bytes = 0
    if expires_at_ms ~= MISSING then
        bytes = redis.pcall('STRLEN', key)
        if type(bytes) == 'table' then
            if not string.find(bytes.err, 'WRONGTYPE', 1, true) then
                return bytes
            end
            bytes = -1
        end
    elseif not is_referred_to(key) then
        expires_at_ms = CONFIRMED
    end
    reply[2 * index - 1] = expires_at_ms
    reply[2 * index] = bytes
end
return reply
