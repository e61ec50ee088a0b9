#!lua flags=allow-oom
--[[
Purpose
    Remove a queue with all it holds. The next append or subscription creates a new queue, for which no old fence is
    valid; the consumer is woken and finds its fence stale.
KEYS
    [1-8]  state, order, times, values, tombstones, in_flight, wake, producers
ARGV
    [1]  incarnation     of the queue that may be removed; empty: any
    [2]  dry_run         1: count and remove nothing; else 0
Returns
    {existed, live, lag, in_flight, bytes, incarnation}  1 when any key of the queue existed; keys; entries not
                         delivered yet; messages in flight; bytes of keys and values; incarnation, 0 without one
Errors
    INVALID  an argument breaks the rules above
    STALE    the queue has another incarnation
Cost
    O(log N) for N keys; memory is freed in the background.
]]
local WAKE_LIFE_S = 60

local state_key, order_key, in_flight_key = KEYS[1], KEYS[2], KEYS[6]
local times_key, values_key, tombstones_key, wake_key, producers_key = KEYS[3], KEYS[4], KEYS[5], KEYS[7], KEYS[8]
local incarnation, dry_run = ARGV[1], ARGV[2]
if #KEYS ~= 8 or #ARGV ~= 2 or (dry_run ~= '0' and dry_run ~= '1') then
    return redis.error_reply('INVALID 8 keys, an incarnation and 0 or 1 are expected')
end
local fields = redis.call('HMGET', state_key, 'incarnation', 'sent', 'bytes', 'session')
if incarnation ~= '' and fields[1] ~= incarnation then
    return redis.error_reply('STALE the queue is gone, or another one of its name is there')
end
local existed = redis.call(
    'EXISTS', state_key, order_key, times_key, values_key, tombstones_key, in_flight_key, producers_key
) > 0 and 1 or 0
local reply = {
    existed, redis.call('ZCARD', order_key), redis.call('ZCOUNT', order_key, '(' .. (fields[2] or '0'), '+inf'),
    redis.call('ZCARD', in_flight_key), tonumber(fields[3] or '0'), tonumber(fields[1] or '0'),
}
if dry_run == '0' then
    redis.call('UNLINK', state_key, order_key, times_key, values_key, tombstones_key, in_flight_key, producers_key)
    if fields[4] and fields[4] ~= '' then
        -- Nothing of the queue stays where the consumer does not wait for it any more.
        redis.call('ZADD', wake_key, '0', 'wake')
        redis.call('EXPIRE', wake_key, WAKE_LIFE_S)
    else
        redis.call('UNLINK', wake_key)
    end
end
return reply
