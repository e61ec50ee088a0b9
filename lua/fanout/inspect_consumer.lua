#!lua flags=no-writes
--[[
Purpose
    Describe one consumer of a queue.
KEYS
    [1-11]  state, options, consumers, messages, references, log, cursors, leases, delayed, dead, details
    [12+] ready          list of ids per lane
ARGV
    [1]  consumer        its name
    [2]  sample          messages next in line, per list, to look at for only_holder, 0 to 1,000
    [3]  now_ms          instant; empty: the server's time
Returns
    {options, last_seen_ms, leased, overdue, delayed, dead, deadline_ms, due_ms, oldest_dead_ms, sampled, only_holder,
     in_log, in_log_since_ms, fields(name, value), lanes(length, published_ms, state)}
                         its options, with mode leaving while it is unregistered; messages under lease, those whose
                         lease has run out, messages that wait for a retry, dead letters; earliest deadline, retry and
                         death, 0 without one; messages looked at, and those that only it owes an ack for; messages
                         that it has still to read in the log, and when the next of them was published; its counters,
                         empty without any; per lane the length of its list, when its next message was published (0:
                         none, or it is gone), and "leased <id>", "blocked <ms>" or empty
Errors
    INVALID  an argument breaks the rules above
    UNKNOWN_QUEUE, UNKNOWN_CONSUMER  there is no such queue, or no such consumer is registered
    VERSION  the consumer has another number of lanes
Cost
    O(lanes + sample); about 25 us, 1 us per message looked at. At most 1,000 of these.
]]
--- @include "includes/instant"
--- @include "includes/fanout_consumer"
--- @include "includes/fanout_lanes"
--- @include "includes/fanout_read_log"

local SAMPLE = 1000
local FIRST_READY = 12
--- @include "includes/fanout_all_keys"

--- @keys
local consumer, sample, now = ARGV[1], integer(ARGV[2]), instant(ARGV[3])
if #ARGV ~= 3 or not sample or sample < 0 or sample > SAMPLE or not now then
    return redis.error_reply('INVALID a name, a sample of 0 to 1000 and an instant are expected')
end
local options, nobody, text = options_of(keys.state, keys.options, consumer, true)
local refused = nobody or lanes_error(options, keys.ready)
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
local values = redis.call('HMGET', keys.details, unpack(FIELDS))
local fields = {}
for index, field in ipairs(FIELDS) do
    fields[2 * index - 1], fields[2 * index] = field, values[index] or ''
end
local lanes, sampled, only_holder = {}, 0, 0
-- Adds ids next in line to the sample.
local function take_sample(ids)
    if sampled < sample and #ids > 0 then
        sampled = sampled + #ids
        for _, count in ipairs(redis.call('HMGET', keys.references, unpack(ids))) do
            if count == '1' then
                only_holder = only_holder + 1
            end
        end
    end
end
-- Returns when a message was published: 0 without one, or when it is gone.
local function published_ms(id)
    local message = id and redis.call('HGET', keys.messages, id)
    return tonumber(string.match(message or '', '^%d+') or 0)
end
for lane, key in ipairs(keys.ready) do
    local ids = redis.call('LRANGE', key, 0, math.max(sample - sampled, 1) - 1)
    lanes[3 * lane - 2] = redis.call('LLEN', key)
    lanes[3 * lane - 1] = published_ms(ids[1])
    lanes[3 * lane] = options.mode == 'fifo' and '' or redis.call('HGET', keys.details, 'l' .. lane) or ''
    take_sample(ids)
end
local reached, cursor = cursor_of(keys, consumer)
local in_log = cursor and reached - cursor or 0
local next_ids = in_log > 0 and read_log(keys, cursor, reached, math.max(sample - sampled, 1), 1)[1] or {}
take_sample({ unpack(next_ids, 1, math.max(sample - sampled, 0)) })
return {
    text,
    tonumber(redis.call('ZSCORE', keys.consumers, consumer)) or 0,
    redis.call('ZCARD', keys.leases),
    redis.call('ZCOUNT', keys.leases, '-inf', string.format('%d', now)),
    redis.call('ZCARD', keys.delayed),
    redis.call('ZCARD', keys.dead),
    first_score(keys.leases),
    first_score(keys.delayed),
    first_score(keys.dead),
    sampled,
    only_holder,
    in_log,
    published_ms(next_ids[1]),
    fields,
    lanes,
}
