#!lua flags=no-writes
--[[
Purpose
    Read the message of a key, without consuming it.
KEYS
    [1-3]  order, times, values
ARGV
    [1]  key             of the message
Returns
    {ms, sequence, value}  the instant is 0 where it is lost; the value is "<sequence> <flags> <record>", with flags 1
                         for a tombstone and else 0, unless it was damaged
    {}                   the key is not there
Errors
    INVALID  3 keys and 1 argument are expected
Cost
    O(B) for a value of B bytes; about 5 us.
]]
local order_key, times_key, values_key, key = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
if #KEYS ~= 3 or #ARGV ~= 1 then
    return redis.error_reply('INVALID 3 keys and 1 argument are expected')
end
local value, sequence = redis.call('HGET', values_key, key), redis.call('ZSCORE', order_key, key)
local ms = redis.call('ZSCORE', times_key, key) or '0'
return value and sequence and { ms + 0, sequence + 0, value } or {}
