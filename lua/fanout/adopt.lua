#!lua
--[[
Purpose
    Give a newly registered consumer earlier messages, newest first, ahead of all that came since; messages that are not
    due wait for their time. The consumer claims nothing until this has finished. A repeated call adopts nothing twice.
KEYS
    [1-9]  state, options, messages, references, expiries, held, delayed, details, wakes
    [10+] ready          list of ids per lane
ARGV
    [1]  consumer        its name
    [2]  limit           held: most messages to adopt, 1 to 500
    [3]  is_last         retained: 1 when no page follows this one, else 0
    [4]  now_ms          instant; empty: the server's time
    [5+] ids             retained: messages to adopt, at most 500, greatest first
Returns
    {adopted, more}      messages that wait for it now; 1 when the consumer has to wait for another page. With start
                         held, no later consumer adopts the same messages; retained copies references
Errors
    INVALID  an argument breaks the rules above
    UNKNOWN_QUEUE, UNKNOWN_CONSUMER  there is no such queue, or no such consumer is registered
    VERSION  the consumer has another number of lanes
Cost
    O(M) for M messages; about 10 us per message on two busy cores. At most 500.
]]
--- @include "includes/instant"
--- @include "includes/fanout_consumer"
--- @include "includes/fanout_lanes"
--- @include "includes/fanout_ids"
--- @include "includes/fanout_let_go"
--- @include "includes/fanout_due"
--- @include "includes/fanout_wake"

local PER_CALL = 500
local FIRST_READY = 10
local FIRST_ID = 5
--- @include "includes/fanout_all_keys"

local keys = { state = KEYS[1], messages = KEYS[3], references = KEYS[4], expiries = KEYS[5] }
local options_key, held_key, delayed_key, details_key, wakes_key = KEYS[2], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local ready = { unpack(KEYS, FIRST_READY) }
local limit, now = integer(ARGV[2]), instant(ARGV[4])
if #ARGV - FIRST_ID + 1 > PER_CALL or not limit or limit < 1 or limit > PER_CALL or not are_ids(ARGV, FIRST_ID) then
    return redis.error_reply('INVALID limit is not an integer from 1 to 500, or there are more ids, or other values')
end
if not now or (ARGV[3] ~= '0' and ARGV[3] ~= '1') then
    return redis.error_reply('INVALID now is neither empty nor an integer of 0 or more, or is_last is neither 0 nor 1')
end
for index = FIRST_ID + 1, #ARGV do
    if tonumber(ARGV[index]) >= tonumber(ARGV[index - 1]) then
        return redis.error_reply('INVALID ids do not count down')
    end
end
local options, unknown = options_of(keys.state, options_key, ARGV[1])
local refused = unknown or lanes_error(options, ready)
if refused then
    return refused
end
local start, below = string.match(redis.call('HGET', details_key, 'adopting') or '', '^(%l+) (%d+)$')
if not start then
    return { 0, 0 }
end

local wanted, held = {}, 0
if start == 'held' then
    held = redis.call('LLEN', held_key)
    wanted = redis.call('LRANGE', held_key, -limit, -1)
    for low = 1, math.floor(#wanted / 2) do
        wanted[low], wanted[#wanted - low + 1] = wanted[#wanted - low + 1], wanted[low]
    end
else
    for index = FIRST_ID, #ARGV do
        if tonumber(ARGV[index]) < tonumber(below) then
            wanted[#wanted + 1] = ARGV[index]
        end
    end
end
local adopted, gone, life_ends = 0, {}, {}
for _, id in ipairs(wanted) do
    local message = redis.call('HGET', keys.messages, id)
    local due, expires_at, order_hash = string.match(message or '', '^(%d+):(%d+):(%d+):')
    if expires_at and tonumber(expires_at) > now then
        if tonumber(due) > now then
            redis.call('ZADD', delayed_key, due_score(due, id), id)
        else
            redis.call('LPUSH', ready[tonumber(order_hash) % options.lanes + 1], id)
        end
        if start == 'retained' then
            redis.call('HINCRBY', keys.references, id, 1)
        end
        adopted = adopted + 1
    elseif start == 'held' then
        gone[#gone + 1] = id
        life_ends[id] = expires_at
    end
end
local more
if start == 'held' then
    if #wanted > 0 then
        redis.call('LTRIM', held_key, 0, -#wanted - 1)
    end
    more = #wanted < held
else
    if #wanted > 0 then
        redis.call('HSET', details_key, 'adopting', 'retained ' .. wanted[#wanted])
    end
    more = ARGV[3] == '0'
end
let_go(keys, gone, life_ends, now)
if adopted > 0 then
    redis.call('HINCRBY', details_key, 'adopted', adopted)
end
if not more then
    redis.call('HDEL', details_key, 'adopting')
    wake(wakes_key)
end
return { adopted, more and 1 or 0 }
