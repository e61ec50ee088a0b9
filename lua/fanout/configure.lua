#!lua flags=allow-oom
--[[
Purpose
    Change the options of a member. Publishers learn of it by the membership's number. A member that gets a maximum
    length has all its messages in its own lists from then on, and no cursor. A full server runs this, too, since a
    lower limit makes room.
KEYS
    [1-8]  state, options, log, cursors, leases, delayed, details, wakes
    [9+] ready           list of ids per lane that it has now
ARGV
    [1]  consumer        its name
    [2]  options         "mode when_failed lanes max_length when_full dead_retention_ms idle_expiry_ms"
Returns
    membership           its number, which has grown unless the options are the same
Errors
    INVALID  an argument breaks the rules above, or mode or lanes are to change while messages wait
    UNKNOWN_QUEUE, UNKNOWN_CONSUMER  there is no such queue, or no such consumer is registered
    VERSION  the consumer has another number of lanes
    BEHIND   it has more than 1,000 messages in the log: pull them
Cost
    O(1), or O(lanes) when they change; about 10 us.
]]
--- @include "includes/fanout_checked_options"
--- @include "includes/fanout_consumer"
--- @include "includes/fanout_lanes"
--- @include "includes/fanout_next_membership"
--- @include "includes/fanout_pull"
--- @include "includes/fanout_leave"
--- @include "includes/fanout_wake"

local FIRST_READY = 9
--- @include "includes/fanout_all_keys"

--- @keys
local consumer, text = ARGV[1], ARGV[2]
local wanted = #ARGV == 2 and checked_options(text)
if not wanted then
    return redis.error_reply('INVALID options do not read "mode when_failed lanes max_length when_full ..."')
end
local known, unknown = options_of(keys.state, keys.options, consumer)
local refused = unknown or lanes_error(known, keys.ready)
if refused then
    return refused
end
if redis.call('HGET', keys.options, consumer) == text then
    return tonumber(redis.call('HGET', keys.state, 'membership'))
end
local is_rearranged = wanted.mode ~= known.mode or wanted.lanes ~= known.lanes
local reached, cursor = cursor_of(keys, consumer)
local in_log = cursor and reached - cursor or 0
if is_rearranged and (in_log > 0 or redis.call('EXISTS', keys.leases, keys.delayed, unpack(keys.ready)) > 0) then
    return redis.error_reply('INVALID mode and lanes can only change while no message waits or is worked on')
end
if wanted.max_length > 0 and in_log > PULLED_PER_CALL then
    return redis.error_reply('BEHIND consumer ' .. consumer .. ' has more than 1000 messages in the log')
end
redis.call('HSET', keys.options, consumer, text)
if wanted.max_length > 0 and cursor then
    pull(keys, consumer, PULLED_PER_CALL)
    leave_log(keys, consumer)
    -- Who waits for an entry of the log would not find one that was removed just now.
    wake(keys.wakes)
elseif wanted.max_length == 0 and known.max_length > 0 then
    redis.call('ZADD', keys.cursors, 'NX', string.format('%d', reached), consumer)
end
if is_rearranged then
    redis.call('HDEL', keys.details, 'next_lane')
    for lane = 1, known.lanes do
        redis.call('HDEL', keys.details, 'l' .. lane)
    end
end
local membership = next_membership(keys.state)
redis.call('HSET', keys.state, 'membership', string.format('%d', membership))
return membership
