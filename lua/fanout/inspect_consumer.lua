#!lua flags=no-writes
--[[
Purpose
    Describe one consumer of a queue.
KEYS
    [1-9]  state, options, consumers, messages, references, leases, delayed, dead, details
    [10+] ready          list of ids per lane
ARGV
    [1]  consumer        its name
    [2]  sample          messages next in line, per list, to look at for only_holder, 0 to 1,000
    [3]  now_ms          instant; empty: the server's time
Returns
    {options, last_seen_ms, leased, overdue, delayed, dead, deadline_ms, due_ms, oldest_dead_ms, sampled, only_holder,
     fields(name, value), lanes(length, published_ms, state)}
                         its options, with mode leaving while it is unregistered; messages under lease, those whose
                         lease has run out, messages that wait for a retry, dead letters; earliest deadline, retry and
                         death, 0 without one; messages looked at, and those that only it owes an ack for; its counters,
                         empty without any; per lane its length, when its next message was published (0: none, or it
                         is gone), and "leased <id>", "blocked <ms>" or empty
Errors
    INVALID  an argument breaks the rules above
    UNKNOWN_QUEUE, UNKNOWN_CONSUMER  there is no such queue, or no such consumer is registered
    VERSION  the consumer has another number of lanes
Cost
    O(lanes + sample); about 20 us, 1 us per message looked at. At most 1,000 of these.
]]
--- @include "includes/instant"
--- @include "includes/fanout_consumer"
--- @include "includes/fanout_lanes"

local SAMPLE = 1000
local FIRST_READY = 10
--- @include "includes/fanout_all_keys"

local messages_key, references_key, leases_key, details_key = KEYS[4], KEYS[5], KEYS[6], KEYS[9]
local ready = { unpack(KEYS, FIRST_READY) }
local consumer, sample, now = ARGV[1], integer(ARGV[2]), instant(ARGV[3])
if #ARGV ~= 3 or not sample or sample < 0 or sample > SAMPLE or not now then
    return redis.error_reply('INVALID a name, a sample of 0 to 1000 and an instant are expected')
end
local options, nobody, text = options_of(KEYS[1], KEYS[2], consumer, true)
local refused = nobody or lanes_error(options, ready)
if refused then
    return refused
end

local function first_score(key)
    return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or 0)
end

local FIELDS = {
    'paused', 'adopting', 'registered_ms', 'claimed', 'acked', 'retried', 'stalled', 'returned', 'dead', 'revived',
    'expired', 'dropped', 'purged', 'adopted',
}
local values = redis.call('HMGET', details_key, unpack(FIELDS))
local fields = {}
for index, field in ipairs(FIELDS) do
    fields[2 * index - 1], fields[2 * index] = field, values[index] or ''
end
local lanes, sampled, only_holder = {}, 0, 0
for lane, key in ipairs(ready) do
    local ids = redis.call('LRANGE', key, 0, math.max(sample - sampled, 1) - 1)
    local message = ids[1] and redis.call('HGET', messages_key, ids[1])
    lanes[3 * lane - 2] = redis.call('LLEN', key)
    lanes[3 * lane - 1] = tonumber(string.match(message or '', '^%d+') or 0)
    lanes[3 * lane] = options.mode == 'fifo' and '' or redis.call('HGET', details_key, 'l' .. lane) or ''
    if sampled < sample and #ids > 0 then
        sampled = sampled + #ids
        for _, count in ipairs(redis.call('HMGET', references_key, unpack(ids))) do
            if count == '1' then
                only_holder = only_holder + 1
            end
        end
    end
end
return {
    text,
    tonumber(redis.call('ZSCORE', KEYS[3], consumer)) or 0,
    redis.call('ZCARD', leases_key),
    redis.call('ZCOUNT', leases_key, '-inf', string.format('%d', now)),
    redis.call('ZCARD', KEYS[7]),
    redis.call('ZCARD', KEYS[8]),
    first_score(leases_key),
    first_score(KEYS[7]),
    first_score(KEYS[8]),
    sampled,
    only_holder,
    fields,
    lanes,
}
