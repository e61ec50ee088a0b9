#!lua flags=no-writes
--[[
Purpose
    Describe one consumer of a queue.
KEYS
    [1]  state           fields of the queue
    [2]  options         member -> options
    [3]  consumers       when each member was seen last
    [4]  messages        id -> message
    [5]  references      id -> consumers that owe an ack
    [6]  leases          id -> deadline
    [7]  delayed         id -> when its retry is due
    [8]  dead            id -> when it died
    [9]  details         fields of the consumer
    [10+] ready          list of ids per lane
ARGV
    [1]  consumer        its name
    [2]  sample          messages next in line, per list, to look at for only_holder, 0 to 1,000
    [3]  now_ms          instant; empty: the server's time
Returns
    {options, last_seen_ms, leased, overdue, delayed, dead, deadline_ms, due_ms, oldest_dead_ms, sampled, only_holder,
                         fields, lanes}  its options, with mode leaving while it is unregistered; messages under lease,
                         those whose lease has run out, that wait for a retry, dead letters; earliest deadline, retry
                         and death, 0 without one; messages looked at, and those that only it owes an ack for; names and
                         values in turn, empty where there is none; three values per lane: its length, when its next
                         message was published (0: none, or it is gone), and "leased <id>", "blocked <ms>" or empty
Errors
    INVALID           an argument breaks the rules above
    UNKNOWN_QUEUE     there is no such queue
    UNKNOWN_CONSUMER  no such consumer is registered
    VERSION           the consumer has another number of lanes
Cost
    O(lanes + sample); about 20 us, 1 us per message looked at. At most 1,000 of these.
]]
--- @include "includes/instant"
--- @include "includes/fanout_options"
--- @include "includes/fanout_lanes"

local SAMPLE = 1000
local FIRST_READY = 10

local messages_key, references_key, leases_key, details_key = KEYS[4], KEYS[5], KEYS[6], KEYS[9]
local ready = { unpack(KEYS, FIRST_READY) }
local consumer, sample, now = ARGV[1], integer(ARGV[2]), instant(ARGV[3])
if #ARGV ~= 3 or not sample or sample < 0 or sample > SAMPLE or not now then
    return redis.error_reply('INVALID a name, a sample of 0 to 1000 and an instant are expected')
end
local text = redis.call('HGET', KEYS[2], consumer)
local options = text and read_options(text)
if not options then
    if redis.call('EXISTS', KEYS[1]) == 0 then
        return redis.error_reply('UNKNOWN_QUEUE there is no queue of this name')
    end
    return redis.error_reply('UNKNOWN_CONSUMER no consumer of this name is registered with the queue')
end
local refused = lanes_error(options, ready)
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
