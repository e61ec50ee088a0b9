#!lua flags=allow-oom
--[[
Purpose
    Put dead letters back in line, with attempts and stalls of 0: after other messages, or, with an ordered consumer,
    before them. They are kept as long as new dead letters.
KEYS
    [1-9]  state, options, messages, expiries, cursors, delayed, dead, details, wakes
    [10+] ready           list of ids per lane
ARGV
    [1]  consumer        its name
    [2]  now_ms          instant; empty: the server's time
    [3+] ids             letters
Returns
    {retried, *missing}   messages that wait again; ids that are not dead letters, or whose message was gone: such a
                         letter is removed
Errors
    INVALID  an argument breaks the rules above, or there are none or more than 500 ids
    UNKNOWN_QUEUE, UNKNOWN_CONSUMER  there is no such queue, or no such consumer is registered
    VERSION  the consumer has another number of lanes
Cost
    O(M log D) for M of D letters; about 20 us per letter on two busy cores. At most 500.
]]
--- @include "includes/instant"
--- @include "includes/fanout_consumer"
--- @include "includes/fanout_lanes"
--- @include "includes/fanout_new_entries"
--- @include "includes/fanout_ids"
--- @include "includes/fanout_keep"
--- @include "includes/fanout_wake"
--- @include "includes/fanout_to_tail"

local IDS_PER_CALL = 500
local FIRST_READY = 10
local FIRST_ID = 3
--- @include "includes/fanout_all_keys"

--- @keys
local now = instant(ARGV[2])
local count = #ARGV - FIRST_ID + 1
if count < 1 or count > IDS_PER_CALL or not are_ids(ARGV, FIRST_ID) or not now then
    return redis.error_reply('INVALID a name, an instant and 1 to ' .. IDS_PER_CALL .. ' ids are expected')
end
--- @include "includes/fanout_own_options"

local ids = { unpack(ARGV, FIRST_ID) }
local is_ordered = options.mode == 'ordered'
table.sort(ids, function(one, other)
    if is_ordered then
        return tonumber(one) > tonumber(other)
    end
    return tonumber(one) < tonumber(other)
end)
local reply = { 0 }
local ended, again = {}, {}
for position, died in ipairs(redis.call('ZMSCORE', keys.dead, unpack(ids))) do
    local id = ids[position]
    local was_dead = died and id ~= ids[position - 1]
    local message = was_dead and redis.call('HGET', keys.messages, id)
    local order_hash = string.match(message or '', '^%d+:%d+:(%d+):')
    if order_hash then
        local lane = is_ordered and tonumber(order_hash) % options.lanes + 1 or 0
        redis.call('HSET', keys.details, id, write_entry(0, 0, lane, '-'))
        redis.call('HDEL', keys.details, 'e' .. id)
        keep(keys, now + options.dead_retention_ms, { id })
        if is_ordered then
            redis.call('LPUSH', keys.ready[lane], id)
        else
            again[#again + 1] = id
        end
        ended[#ended + 1] = id
        reply[1] = reply[1] + 1
    else
        reply[#reply + 1] = id
        if was_dead then
            ended[#ended + 1] = id
            redis.call('HDEL', keys.details, id, 'e' .. id)
        end
    end
end
if #again > 0 then
    put_at_tail(keys, ARGV[1], again, now)
end
if #ended > 0 then
    redis.call('ZREM', keys.dead, unpack(ended))
end
if reply[1] > 0 then
    redis.call('HINCRBY', keys.details, 'revived', reply[1])
    wake(keys.wakes)
end
return reply
