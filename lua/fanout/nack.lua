#!lua flags=allow-oom
--[[
Purpose
    Report that work on a message has failed: it is handed out again, at once or later, or becomes a dead letter. With
    an ordered consumer it returns to the head of its lane, which waits for it. Its payload is kept at least until then.
KEYS
    [1-10]  state, options, messages, expiries, cursors, leases, delayed, dead, details, wakes
    [11+] ready          list of ids per lane
ARGV
    [1]  consumer        its name
    [2]  token           of the lease
    [3]  id              the message
    [4]  delay_ms        until the retry, 0 or more
    [5]  max_attempts    number of attempts after which it becomes a dead letter; empty: never
    [6]  reason          reason that is kept with a dead letter, at most 1,000 bytes
    [7]  position        tail or head: its place in line without a delay; always head for an ordered consumer
    [8]  now_ms          instant; empty: the server's time
Returns
    {"retried", due_ms}  it is handed out again at that instant or later
    {"dead", attempts}   it is a dead letter
    {"stale"}            its lease is no longer the caller's, or never was; nothing has changed
Errors
    INVALID  an argument breaks the rules above
    UNKNOWN_QUEUE, UNKNOWN_CONSUMER  there is no such queue, or no such consumer is registered
    VERSION  the consumer has another number of lanes
Cost
    O(log L) for L leases, delayed messages and dead letters; about 45 us on two busy cores.
]]
--- @include "includes/instant"
--- @include "includes/fanout_consumer"
--- @include "includes/fanout_lanes"
--- @include "includes/fanout_entries"
--- @include "includes/fanout_new_entries"
--- @include "includes/fanout_tokens"
--- @include "includes/fanout_ids"
--- @include "includes/fanout_bury"
--- @include "includes/fanout_keep"
--- @include "includes/fanout_to_tail"
--- @include "includes/fanout_wake"


local FIRST_READY = 11
--- @include "includes/fanout_all_keys"
--- @keys

local token, id, reason, place = ARGV[2], ARGV[3], ARGV[6], ARGV[7]
local delay_ms, max_attempts = integer(ARGV[4]), integer(ARGV[5])
local now = instant(ARGV[8])
if #ARGV ~= 8 or not are_ids({ id }, 1) or not is_token(token) then
    return redis.error_reply('INVALID 8 arguments are expected, with a token of a claim and the id of a message')
end
if not delay_ms or delay_ms < 0 or (ARGV[5] ~= '' and (not max_attempts or max_attempts < 1)) then
    return redis.error_reply('INVALID delay or number of attempts is not an integer of 0, or 1, or more')
end
if #reason > 1000 or (place ~= 'tail' and place ~= 'head') or not now then
    return redis.error_reply('INVALID reason has over 1000 bytes, position is not tail or head, or now no integer')
end
--- @include "includes/fanout_own_options"

local attempts, stalls, lane, owner = read_entry(redis.call('HGET', keys.details, id))
if owner ~= token then
    return { 'stale' }
end
redis.call('ZREM', keys.leases, id)
wake(keys.wakes)
if max_attempts and attempts >= max_attempts then
    bury(keys, options, id, attempts, stalls, lane, reason, now)
    if lane > 0 then
        redis.call('HDEL', keys.details, 'l' .. lane)
    end
    return { 'dead', attempts }
end
redis.call('HINCRBY', keys.details, 'retried', 1)
redis.call('HSET', keys.details, id, write_entry(attempts, stalls, lane, '-'))
local due = string.format('%d', now + delay_ms)
keep(keys, now + delay_ms, { id })
if lane > 0 then
    redis.call('HSET', keys.details, 'l' .. lane, 'blocked ' .. due)
    redis.call('LPUSH', keys.ready[lane], id)
elseif delay_ms > 0 then
    redis.call('ZADD', keys.delayed, due_score(now + delay_ms, id), id)
elseif place == 'head' then
    redis.call('LPUSH', keys.ready[1], id)
else
    put_at_tail(keys, ARGV[1], { id }, now)
end
return { 'retried', due }
