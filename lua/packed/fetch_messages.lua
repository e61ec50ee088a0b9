#!lua flags=no-writes
--[[
Purpose
    Read messages, as many from the first on as fit. Where all surely fit, the caller uses HMGET, which is cheaper.
KEYS
    [1]  session    the session
ARGV
    [1]  max_bytes  limit for bytes of records; the first message is read whatever its size
    [2+] serials    of the messages
Returns
    {*records}  record per serial that was read, in order; none where there is no message
Errors
    INVALID  max_bytes is not an integer of 1 or more, or there are no serials or too many
Cost
    O(M) for M serials; about 2 us per message of 1 KB. At most 500.
]]
--- @include "includes/integers"

local SERIALS_PER_CALL = 500
local FIRST_SERIAL = 2

local session_key, max_bytes = KEYS[1], integer(ARGV[1])
local count = #ARGV - FIRST_SERIAL + 1
if #KEYS ~= 1 or count < 1 or count > SERIALS_PER_CALL or not max_bytes or max_bytes < 1 then
    return redis.error_reply('INVALID 1 key, max_bytes and 1 to ' .. SERIALS_PER_CALL .. ' serials are expected')
end
local reply, bytes = {}, 0
for index = FIRST_SERIAL, #ARGV do
    bytes = bytes + redis.call('HSTRLEN', session_key, ARGV[index])
    if bytes > max_bytes and #reply > 0 then
        return reply
    end
    reply[#reply + 1] = redis.call('HGET', session_key, ARGV[index])
end
return reply
