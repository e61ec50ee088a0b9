#!lua flags=no-writes
--[[
Purpose
    Read packet ids and expiries of messages.
KEYS
    [1]  session  the session
ARGV
    [1+] serials  of the messages
Returns
    {*found}  "packet_id:expires_at_ms" per serial, in order; empty where there is no message, "0:0" for a record that
              is none
Errors
    INVALID  there are no serials or too many
Cost
    O(M) for M serials; about 1 us per message of 256 B, 2 us per message of 1 KB. At most 500.
]]
--- @include "includes/packed_record"

local SERIALS_PER_CALL = 500
local FIRST_SERIAL = 1

if #KEYS ~= 1 or #ARGV < 1 or #ARGV > SERIALS_PER_CALL then
    return redis.error_reply('INVALID 1 key and 1 to ' .. SERIALS_PER_CALL .. ' serials are expected')
end
local found = {}
for index, record in ipairs(redis.call('HMGET', KEYS[1], unpack(ARGV, FIRST_SERIAL))) do
    if not record then
        found[index] = ''
    elseif #record < HEAD_BYTES then
        found[index] = '0:0'
    else
        found[index] = string.format('%d:%.0f', struct.unpack('>Hd', record))
    end
end
return found
