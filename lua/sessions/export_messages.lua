#!lua flags=no-writes
--[[
Purpose
    Read messages with the instants at which they expire, for a comparison with their source.
KEYS
    [1+] payloads        keys of messages of one session
ARGV
    [1]  max_bytes       largest number of bytes of JSON to read: messages that do not fit are left out, later ones
                         that fit are read; empty: all are read
Returns
    {*records(json, pexpiretime)}  two values per key, in order: JSON, or empty when there is none; instant in ms,
                              -1 without expiry, -2 for a key that does not exist, -3 less its bytes for a message
                              that was left out
Errors
    INVALID  max_bytes is not an integer of 1 or more, or there is not one argument, or no keys or too many keys
Cost
    O(M) for M keys; about 2 us per key. At most 500 keys.
]]
--- @include "includes/integers"

local FIRST_PAYLOAD = 1
local PAYLOAD_KEYS_PER_CALL = 500
local LEFT_OUT = -3

if #KEYS < 1 or #KEYS > PAYLOAD_KEYS_PER_CALL or #ARGV ~= 1 then
    return redis.error_reply('INVALID 1 to ' .. PAYLOAD_KEYS_PER_CALL .. ' keys and 1 argument are expected')
end
local is_bounded = ARGV[1] ~= ''
local max_bytes = is_bounded and integer(ARGV[1])
if is_bounded and (not max_bytes or max_bytes < 1) then
    return redis.error_reply('INVALID max_bytes is not an integer of 1 or more')
end

local reply, read, places, bytes = {}, {}, {}, 0
for index = FIRST_PAYLOAD, #KEYS do
    local key = KEYS[index]
    -- An error reply, which is a table, means a key of another type, which MGET reads as nothing.
    local size = max_bytes and redis.pcall('STRLEN', key)
    if type(size) == 'number' and bytes + size > max_bytes then
        reply[2 * index - 1] = ''
        reply[2 * index] = LEFT_OUT - size
    else
        bytes = bytes + (type(size) == 'number' and size or 0)
        read[#read + 1] = key
        places[#places + 1] = index
    end
end
for at, json in ipairs(#read > 0 and redis.call('MGET', unpack(read)) or {}) do
    local index = places[at]
    reply[2 * index - 1] = json or ''
    reply[2 * index] = redis.call('PEXPIRETIME', KEYS[index])
end
return reply
