#!lua flags=no-writes
--[[
Purpose
    Return the state of a queue.
KEYS
    [1-6]  state, order, times, values, tombstones, in_flight
ARGV
    [1]  samples         members per key from which its memory is estimated, 1 to 100
    [2]  now             ms; empty: the server's clock
Returns
    {now, live, tombstones, lag, in_flight, oldest_sequence, oldest_ms, newest_ms, oldest_undelivered_ms,
     oldest_unacked_ms, memory_bytes, *fields(field, value)}
                         lag: entries not delivered yet; instants of appends, and the sequence, are -1 when there is no
                         such message; then all fields of the state, two values each
    {}                   there is no such queue
Errors
    INVALID  an argument breaks the rules above
Cost
    O(log N + S) for N keys and S samples, and O(log N) per message in flight whose value is gone, of which at most 500
    are looked at; about 50 us.
]]
--- @include "includes/instant"

local IN_FLIGHT_LOOKED_AT = 500
local SAMPLES = 100

local state_key, order_key, times_key, values_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local tombstones_key, in_flight_key = KEYS[5], KEYS[6]
local samples, now = integer(ARGV[1]), instant(ARGV[2] or '-')
if #KEYS ~= 6 or #ARGV ~= 2 or not samples or samples < 1 or samples > SAMPLES or not now then
    return redis.error_reply('INVALID 6 keys, 1 to ' .. SAMPLES .. ' samples and an instant are expected')
end
local state = redis.call('HGETALL', state_key)
if #state == 0 then
    return {}
end

local function instant_of(key)
    local ms = key and redis.call('ZSCORE', times_key, key)
    return ms and ms + 0 or -1
end
local sent = redis.call('HGET', state_key, 'sent') or '0'
local oldest = redis.call('ZRANGE', order_key, '0', '0', 'WITHSCORES')
local newest = redis.call('ZRANGE', order_key, '0', '0', 'REV')
local undelivered = redis.call('ZRANGE', order_key, '(' .. sent, '+inf', 'BYSCORE', 'LIMIT', '0', '1')
local oldest_undelivered_ms = instant_of(undelivered[1])
local oldest_unacked_ms = oldest_undelivered_ms
local held = redis.call('ZRANGE', in_flight_key, '0', IN_FLIGHT_LOOKED_AT - 1, 'WITHSCORES')
for place = 2, #held, 2 do
    local key = redis.call('ZRANGE', order_key, held[place], held[place], 'BYSCORE')[1]
    if key then
        oldest_unacked_ms = instant_of(key)
        break
    end
end
local memory_bytes = 0
for _, key in ipairs({ state_key, order_key, times_key, values_key, tombstones_key, in_flight_key }) do
    memory_bytes = memory_bytes + (redis.call('MEMORY', 'USAGE', key, 'SAMPLES', samples) or 0)
end
local reply = {
    now, redis.call('ZCARD', order_key), redis.call('ZCARD', tombstones_key),
    redis.call('ZCOUNT', order_key, '(' .. sent, '+inf'), redis.call('ZCARD', in_flight_key),
    tonumber(oldest[2] or '-1'), instant_of(oldest[1]), instant_of(newest[1]), oldest_undelivered_ms,
    oldest_unacked_ms, memory_bytes,
}
for _, text in ipairs(state) do
    reply[#reply + 1] = text
end
return reply
