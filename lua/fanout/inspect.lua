#!lua flags=no-writes
--[[
Purpose
    Describe a queue; inspect_consumer describes its consumers.
KEYS
    [1-5]  state, messages, references, expiries, held
    [6]  remembered      until when each deduplication id is remembered
ARGV
    none
Returns
    {fields(name, value), messages, references, held, deduplications, next_expiry_ms, now_ms}
                         the state, nothing for an unknown queue; messages; messages that a consumer owes an ack for;
                         held ids; deduplication ids remembered; earliest expiry, 0 without one; the server's time
Errors
    INVALID  6 keys and no arguments are expected
Cost
    O(1); about 5 us.
]]
--- @include "includes/time"

if #KEYS ~= 6 or #ARGV ~= 0 then
    return redis.error_reply('INVALID 6 keys and no arguments are expected')
end
return {
    redis.call('HGETALL', KEYS[1]),
    redis.call('HLEN', KEYS[2]),
    redis.call('HLEN', KEYS[3]),
    redis.call('LLEN', KEYS[5]),
    redis.call('ZCARD', KEYS[6]),
    tonumber(redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')[2] or 0),
    now_ms(),
}
