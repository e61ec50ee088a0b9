#!lua flags=allow-oom
--[[
Purpose
    Remove a consumer, page by page: the first call ends its membership, so that it gets nothing more; each call
    releases some messages that it owes an ack for; the last call removes its keys and its name.
KEYS
    [1-13]  state, options, consumers, messages, references, expiries, log, cursors, leases, delayed, dead, details,
            wakes
    [14+] ready          list of ids per lane
ARGV
    [1]  consumer        its name
    [2]  force           1: even with leases that have not run out; acks of those are refused from then on. Else 0
    [3]  unseen_since_ms  a member that was seen at this instant or later stays; empty: it is removed in any case
    [4]  limit           most messages to release, 1 to 1,000
    [5]  begun           1: only continue a removal that has begun; a consumer that registered again stays. Else 0
    [6]  now_ms          instant; empty: the server's time
Returns
    {released, freed, more}  messages that it owed an ack; those of them that were removed; 1 to call again
    {"seen", last_seen_ms}   it was seen since; nothing has changed
Errors
    INVALID           an argument breaks the rules above
    UNKNOWN_QUEUE     there is no such queue
    UNKNOWN_CONSUMER  no such consumer is registered or left, or with begun, its removal has not begun
    HAS_LEASES        workers have messages of it under lease
    VERSION           the consumer has another number of lanes
Cost
    O(M log T) for M messages released and T in the queue; about 5 us per message. At most 1,000.
]]
--- @include "includes/instant"
--- @include "includes/fanout_consumer"
--- @include "includes/fanout_lanes"
--- @include "includes/fanout_next_membership"
--- @include "includes/fanout_release"
--- @include "includes/fanout_pull"
--- @include "includes/fanout_leave"

local PER_CALL = 1000
local FIRST_READY = 14
--- @include "includes/fanout_all_keys"

--- @keys

local consumer, force, unseen_since, limit = ARGV[1], ARGV[2], integer(ARGV[3]), integer(ARGV[4])
local begun, now = ARGV[5], instant(ARGV[6])
if #ARGV ~= 6 or (force ~= '0' and force ~= '1') or (ARGV[3] ~= '' and not unseen_since) or not now then
    return redis.error_reply('INVALID 6 arguments are expected, force 0 or 1, instants empty or integers')
end
if begun ~= '0' and begun ~= '1' then
    return redis.error_reply('INVALID begun is neither 0 nor 1')
end
if not limit or limit < 1 or limit > PER_CALL then
    return redis.error_reply('INVALID limit is not an integer from 1 to ' .. PER_CALL)
end
local options, nobody, text = options_of(keys.state, keys.options, consumer, true)
if options and begun == '1' and options.mode ~= 'leaving' then
    nobody = nobody_error(keys.state)
end
local refused = nobody or lanes_error(options, keys.ready)
if refused then
    return refused
end
if options.mode ~= 'leaving' then
    local seen = tonumber(redis.call('ZSCORE', keys.consumers, consumer)) or 0
    if unseen_since and seen >= unseen_since then
        return { 'seen', string.format('%d', seen) }
    end
    if force == '0' and redis.call('ZCOUNT', keys.leases, '(' .. string.format('%d', now), '+inf') > 0 then
        return redis.error_reply('HAS_LEASES somebody works on messages of consumer ' .. consumer)
    end
    redis.call('HSET', keys.options, consumer, (string.gsub(text, '^%l+', 'leaving')))
    redis.call('HSET', keys.state, 'membership', string.format('%d', next_membership(keys.state)))
    redis.call('HINCRBY', keys.state, 'members', -1)
    -- What is published from now on is not for it.
    redis.call('HSET', keys.details, 'left_at', redis.call('HGET', keys.state, 'logged') or '0')
end

local sets = { keys.leases, keys.delayed, keys.dead }
local left = pull(keys, consumer, limit)
for _, key in ipairs(sets) do
    left = left + redis.call('ZCARD', key)
end
for _, key in ipairs(keys.ready) do
    left = left + redis.call('LLEN', key)
end
local given_up = {}
for _, key in ipairs(sets) do
    if #given_up < limit then
        local ids = redis.call('ZRANGE', key, 0, limit - #given_up - 1)
        if #ids > 0 then
            redis.call('ZREM', key, unpack(ids))
        end
        for _, id in ipairs(ids) do
            given_up[#given_up + 1] = id
        end
    end
end
for _, key in ipairs(keys.ready) do
    if #given_up < limit then
        for _, id in ipairs(redis.call('LPOP', key, limit - #given_up) or {}) do
            given_up[#given_up + 1] = id
        end
    end
end
local freed = release(keys, given_up)
if #given_up > 0 then
    redis.call('HDEL', keys.details, unpack(given_up))
end
local more = #given_up < left
if not more then
    redis.call('UNLINK', keys.details, keys.wakes)
    redis.call('HDEL', keys.options, consumer)
    redis.call('ZREM', keys.consumers, consumer)
    leave_log(keys, consumer)
end
return { #given_up, freed, more and 1 or 0 }
