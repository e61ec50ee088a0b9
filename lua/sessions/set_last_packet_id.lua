#!lua
--[[
Purpose
    Set the packet id given out last, if it still is the expected one.
KEYS
    [1]  last_packet_id  packet id given out last
    [2]  session         fields of the session
ARGV
    [1]  expected        last packet id that the caller knows; empty: the key is absent
    [2]  last_packet_id  0 to 65535
    [3]  keep_ms         how long from now on the key is kept at least; empty: for ever, if it is new
Returns
    1  it was set
    0  the last packet id is another one; nothing was written
Errors
    INVALID    an argument breaks the rules above
    NOT_OWNER  PostgreSQL owns the session, or its import is not complete
Cost
    O(1); about 5 us.
]]
--- @include "includes/integers"
--- @include "includes/last_packet_id"
--- @include "includes/ownership"
--- @include "includes/set_last_packet_id"

local last_packet_id_key, session_key = KEYS[1], KEYS[2]
local expected, last_packet_id = ARGV[1], ARGV[2]
if #KEYS ~= 2 or #ARGV ~= 3 then
    return redis.error_reply('INVALID 2 keys and 3 arguments are expected')
end
if not is_last_packet_id(last_packet_id) or last_packet_id == '' then
    return redis.error_reply('INVALID last packet id is not an integer from 0 to 65535')
end
if not is_keep_ms(ARGV[3]) then
    return redis.error_reply('INVALID life of the last packet id is neither empty nor an integer of 1 or more')
end

local fields = redis.call('HMGET', session_key, 'owner', 'import', 'saved_last_packet_id')
if not takes_messages(fields[1], fields[2]) then
    return redis.error_reply('NOT_OWNER PostgreSQL owns the session, or its import is not complete')
end
if (redis.call('GET', last_packet_id_key) or '') ~= expected then
    return 0
end
set_last_packet_id(last_packet_id_key, last_packet_id, ARGV[3])
if fields[3] == expected then
    redis.call('HSET', session_key, 'saved_last_packet_id', last_packet_id)
end
return 1
