#!lua flags=allow-oom
--[[
Purpose
    Note that nothing of a session is left under another hash tag: from now on rekey_messages takes it for any other.
KEYS
    [1]  session         fields of the session
ARGV
    none
Returns
    1  the note of the move was removed
    0  there was none
Errors
    INVALID  1 key and no arguments are expected
Cost
    O(1); about 2 us.
]]
if #KEYS ~= 1 or #ARGV ~= 0 then
    return redis.error_reply('INVALID 1 key and no arguments are expected')
end
return redis.call('HDEL', KEYS[1], 'rekeyed')
