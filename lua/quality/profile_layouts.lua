#!lua flags=no-writes
--[[
Purpose
    Tell for each layout of a client's keys whether a session is there that takes messages. A copy takes none, nor a
    session that moves or whose import is not complete: while sessions move, one layout at most takes messages.
KEYS
    [1]  messages        sorted set of references
    [2]  last_packet_id  last packet id
    [3]  session         fields of the session in TBMQ's layout
    [4]  packed          the packed session
ARGV
    none
Returns
    {tbmq, packed}  1 for a session that takes messages, else 0
Errors
    INVALID  4 keys are expected
Cost
    O(1); about 5 us.
]]
--- @include "includes/ownership"

if #KEYS ~= 4 then
    return redis.error_reply('INVALID 4 keys are expected')
end

local function takes(key)
    if redis.call('TYPE', key).ok ~= 'hash' then
        return 1
    end
    return takes_messages(redis.call('HGET', key, 'owner'), redis.call('HGET', key, 'import')) and 1 or 0
end

local messages_key, last_packet_id_key, session_key, packed_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local function is_there(key)
    return redis.call('TYPE', key).ok ~= 'none'
end

local tbmq, packed = 0, 0
if is_there(messages_key) or is_there(last_packet_id_key) or is_there(session_key) then
    tbmq = takes(session_key)
end
if is_there(packed_key) then
    packed = takes(packed_key)
end
return { tbmq, packed }
