#!lua flags=allow-oom
--[[
Purpose
    Remove messages that the client has confirmed. A repeated call removes nothing.
KEYS
    [1]  messages        sorted set of references
    [2+] payload         keys of the messages
ARGV
    [1+] serial          serial of each of the messages, which goes only if it has this one; empty: any
Returns
    {removed, ...}  1 or 0 per payload key, in order
Errors
    INVALID  a serial is neither an integer nor empty, or there are no payload keys or too many
Cost
    O(M log N) for M payload keys and N references; about 10 us per call and 3 us per key. At most 1,000 keys.
]]
--- @include "includes/integers"

local PAYLOAD_KEYS_PER_CALL = 1000
local FIRST_PAYLOAD = 2
local FIRST_SERIAL = 1

local messages_key = KEYS[1]
local count = #KEYS - FIRST_PAYLOAD + 1
if count < 1 or count > PAYLOAD_KEYS_PER_CALL or #ARGV ~= count then
    return redis.error_reply(
        'INVALID the set, 1 to ' .. PAYLOAD_KEYS_PER_CALL .. ' payload keys and as many serials are expected'
    )
end
for index = FIRST_SERIAL, #ARGV do
    if ARGV[index] ~= '' and not integer(ARGV[index]) then
        return redis.error_reply('INVALID serial of message ' .. index .. ' is neither an integer nor empty')
    end
end

local going, removed, seen = {}, {}, {}
for position, score in ipairs(redis.call('ZMSCORE', messages_key, unpack(KEYS, FIRST_PAYLOAD))) do
    local key, serial = KEYS[FIRST_PAYLOAD - 1 + position], ARGV[FIRST_SERIAL - 1 + position]
    removed[position] = 0
    if score and not seen[key] and (serial == '' or tonumber(serial) == tonumber(score)) then
        seen[key] = true
        removed[position] = 1
        going[#going + 1] = key
    end
end
if #going > 0 then
    redis.call('ZREM', messages_key, unpack(going))
    redis.call('UNLINK', unpack(going))
end
return removed
