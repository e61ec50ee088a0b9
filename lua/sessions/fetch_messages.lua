#!lua flags=no-writes
--[[
Purpose
    Read messages and the instants at which they expire, as many from the first on as fit.
KEYS
    [1+] payloads        keys of messages of one session
ARGV
    [1]  max_bytes       limit for bytes of JSON; the first message is read whatever its size
Returns
    {*records(json, pexpiretime)}
                              two values per key that was read, in order: JSON, empty when there is none or the key is
                              of another type; instant in ms, -1 without expiry, -2 for a key that does not exist
Errors
    INVALID  max_bytes is not an integer of 1 or more, or there are no keys or too many
Cost
    O(M) for M keys; about 5 us per message of 1 KB. At most 500 keys.
]]
--- @include "includes/integers"

local PAYLOAD_KEYS_PER_CALL = 500
local FIRST_PAYLOAD = 1

local max_bytes = integer(ARGV[1])
local count = #KEYS - FIRST_PAYLOAD + 1
if count < 1 or count > PAYLOAD_KEYS_PER_CALL or #ARGV ~= 1 then
    return redis.error_reply('INVALID 1 to ' .. PAYLOAD_KEYS_PER_CALL .. ' keys and 1 argument are expected')
end
if not max_bytes or max_bytes < 1 then
    return redis.error_reply('INVALID max_bytes is not an integer of 1 or more')
end

-- MGET reads a key of another type as nothing. A slice has only as many messages as would fit if all had the largest
-- size so far, so that little is read in vain.
local reply, bytes, largest = {}, 0, 1
local first, slice = FIRST_PAYLOAD, 1
while first <= #KEYS do
    local last = math.min(first + slice - 1, #KEYS)
    for offset, json in ipairs(redis.call('MGET', unpack(KEYS, first, last))) do
        local key = KEYS[first + offset - 1]
        local size = json and #json or 0
        bytes = bytes + size
        if bytes > max_bytes and #reply > 0 then
            return reply
        end
        largest = math.max(largest, size)
        reply[#reply + 1] = json or ''
        reply[#reply + 1] = redis.call('PEXPIRETIME', key)
    end
    first = last + 1
    slice = math.max(1, math.min(2 * slice, math.floor((max_bytes - bytes) / largest)))
end
return reply
