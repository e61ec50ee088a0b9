#!lua
--[[
Purpose
    Make a consumer a member of a queue: it gets every message that is published from then on, by a cursor in the log,
    or in its own lists if it has a maximum length. A queue is created with its first member. A consumer that is a
    member already keeps its options; configure changes them.
KEYS
    [1-5]  state, options, consumers, cursors, details
ARGV
    [1]  consumer        its name
    [2]  options         "mode when_failed lanes max_length when_full dead_retention_ms idle_expiry_ms"
    [3]  start           new, held or retained: with the last two it claims nothing until adopt has finished
    [4]  now_ms          instant; empty: the server's time
Returns
    {created, membership, next_id, options, adopting}  1 or 0; number of the membership; id of the next message; its
                         options; "held" or "retained" with a space and the id below which messages are to be adopted,
                         empty when nothing is left to adopt
Errors
    INVALID  an argument breaks the rules above
    LEAVING  a consumer of this name is being unregistered, and some of its messages are still there
    FULL     the queue has 1,000 members
Cost
    O(log C) for C members; about 40 us on two busy cores.
]]
--- @include "includes/instant"
--- @include "includes/fanout_checked_options"
--- @include "includes/fanout_next_membership"

local MEMBERS = 1000

local state_key, options_key, consumers_key, cursors_key, details_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local consumer, options, start = ARGV[1], ARGV[2], ARGV[3]
local now = instant(ARGV[4])
if #KEYS ~= 5 or #ARGV ~= 4 or consumer == '' then
    return redis.error_reply('INVALID 5 keys, the name of a consumer and 3 more arguments are expected')
end
local chosen = checked_options(options)
if not chosen then
    return redis.error_reply('INVALID options do not read "mode when_failed lanes max_length when_full ..."')
end
if start ~= 'new' and start ~= 'held' and start ~= 'retained' then
    return redis.error_reply('INVALID start is none of new, held and retained')
end
if not now then
    return redis.error_reply('INVALID now is neither empty nor an integer of 0 or more')
end

local fields = redis.call('HMGET', state_key, 'membership', 'next_id', 'logged')
local membership, next_id = tonumber(fields[1]) or 0, tonumber(fields[2]) or 1
local known = redis.call('HGET', options_key, consumer)
if known and string.find(known, '^leaving ') then
    return redis.error_reply('LEAVING consumer ' .. consumer .. ' is being unregistered')
end
if known then
    redis.call('ZADD', consumers_key, string.format('%d', now), consumer)
    return { 0, membership, next_id, known, redis.call('HGET', details_key, 'adopting') or '' }
end
if redis.call('HLEN', options_key) >= MEMBERS then
    return redis.error_reply('FULL the queue has ' .. MEMBERS .. ' members')
end
membership = next_membership(state_key)
redis.call('HSET', state_key, 'version', 1, 'membership', string.format('%d', membership), 'next_id', next_id)
redis.call('HINCRBY', state_key, 'members', 1)
redis.call('HSET', options_key, consumer, options)
redis.call('ZADD', consumers_key, string.format('%d', now), consumer)
redis.call('HSET', details_key, 'registered_ms', string.format('%d', now))
if chosen.max_length == 0 then
    redis.call('ZADD', cursors_key, fields[3] or '0', consumer)
end
local adopting = ''
if start ~= 'new' then
    adopting = start .. ' ' .. next_id
    redis.call('HSET', details_key, 'adopting', adopting)
end
return { 1, membership, next_id, options, adopting }
