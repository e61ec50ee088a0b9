#!lua flags=no-writes
--[[
Purpose
    Measure messages without reading them: when they expire and how long their records are.
KEYS
    [1+] payload         keys of messages of one session
ARGV
    none
Returns
    {pexpiretime, bytes, ...}  two numbers per key, in order: instant in ms, -1 without expiry, -2 for a key that does
                               not exist; length of the record, 0 without one, -1 for a key of another type
Errors
    INVALID  there are arguments, no keys or too many keys
Cost
    O(M) for M keys; about 3 us per key. At most 1000 keys.
]]
local FIRST_PAYLOAD = 1
local PAYLOAD_KEYS_PER_CALL = 1000

if #KEYS < FIRST_PAYLOAD or #KEYS > PAYLOAD_KEYS_PER_CALL or #ARGV ~= 0 then
    return redis.error_reply('INVALID 1 to ' .. PAYLOAD_KEYS_PER_CALL .. ' keys and no arguments are expected')
end

local reply = {}
for index = FIRST_PAYLOAD, #KEYS do
    local key = KEYS[index]
    local expires_at_ms = redis.call('PEXPIRETIME', key)
    local bytes = 0
    if expires_at_ms ~= -2 then
        bytes = redis.pcall('STRLEN', key)
        if type(bytes) == 'table' then
            if not string.find(bytes.err, 'WRONGTYPE', 1, true) then
                return bytes
            end
            bytes = -1
        end
    end
    reply[2 * index - 1] = expires_at_ms
    reply[2 * index] = bytes
end
return reply
