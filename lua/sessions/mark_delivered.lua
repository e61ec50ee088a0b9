#!lua flags=allow-oom
--[[
Purpose
    Note that messages up to a serial have been sent to the client. The note never goes back.
KEYS
    [1]  messages        sorted set of references
    [2]  session         fields of the session
ARGV
    [1]  serial          highest serial that was sent
    [2]  keep_ms         life of a hash that this call makes for a set without expiry; empty: for ever
Returns
    1  the note has moved
    0  it was there or further, or the session has neither messages nor fields
Errors
    INVALID  an argument is not an integer of 0 or more
Cost
    O(1); about 4 us.
]]
--- @include "includes/integers"

local messages_key, session_key = KEYS[1], KEYS[2]
local serial, keep_ms = integer(ARGV[1]), integer(ARGV[2])
if #KEYS ~= 2 or #ARGV ~= 2 then
    return redis.error_reply('INVALID 2 keys and 2 arguments are expected')
end
if not serial or serial < 0 then
    return redis.error_reply('INVALID serial is not an integer of 0 or more')
end
if ARGV[2] ~= '' and (not keep_ms or keep_ms < 1) then
    return redis.error_reply('INVALID life of the hash is neither empty nor an integer of 1 or more')
end

local delivered = redis.call('HGET', session_key, 'delivered_serial')
if delivered and tonumber(delivered) >= serial then
    return 0
end
local known = delivered or redis.call('EXISTS', session_key) == 1
local messages_until = not known and redis.call('PEXPIRETIME', messages_key)
if messages_until == -2 then
    return 0
end
redis.call('HSET', session_key, 'delivered_serial', ARGV[1])
-- The hash may not outlive a session that another program wrote.
if messages_until and messages_until ~= -1 then
    redis.call('PEXPIREAT', session_key, string.format('%d', messages_until))
elseif messages_until and keep_ms then
    redis.call('PEXPIRE', session_key, ARGV[2])
end
return 1
