#!lua
--[[
Purpose
    Record that nothing of a session is left under another hash tag: from now on it is a normal session for
    rekey_messages. Fields of the session's old hash are added to the new one.
KEYS
    [1]  session         fields of the session
ARGV
    [1+] fields          pairs of a field and its value, each written where the session has none
Returns
    1  the mark of the move was removed
    0  there was none; nothing was written
Errors
    INVALID  1 key and pairs of arguments are expected
Cost
    O(F) for F fields; about 2 us, and 1 us per field.
]]
local FIRST_FIELD = 1

if #KEYS ~= 1 or #ARGV % 2 ~= 0 then
    return redis.error_reply('INVALID 1 key and pairs of arguments are expected')
end
if redis.call('HEXISTS', KEYS[1], 'rekeyed') == 0 then
    return 0
end
for at = FIRST_FIELD, #ARGV, 2 do
    redis.call('HSETNX', KEYS[1], ARGV[at], ARGV[at + 1])
end
return redis.call('HDEL', KEYS[1], 'rekeyed')
