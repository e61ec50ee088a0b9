#!lua flags=allow-oom
--[[
Purpose
    Change the options of a member. Publishers learn of it by the membership's number. A full server runs this, too,
    since a lower limit makes room.
KEYS
    [1-5]  state, options, leases, delayed, details
    [6+] ready           list of ids per lane that it has now
ARGV
    [1]  consumer        its name
    [2]  options         "mode when_failed lanes max_length when_full dead_retention_ms idle_expiry_ms"
Returns
    membership           its number, which has grown unless the options are the same
Errors
    INVALID  an argument breaks the rules above, or mode or lanes are to change while messages wait
    UNKNOWN_QUEUE, UNKNOWN_CONSUMER  there is no such queue, or no such consumer is registered
    VERSION  the consumer has another number of lanes
Cost
    O(1), or O(lanes) when they change; about 10 us.
]]
--- @include "includes/fanout_checked_options"
--- @include "includes/fanout_consumer"
--- @include "includes/fanout_lanes"
--- @include "includes/fanout_next_membership"

local FIRST_READY = 6
--- @include "includes/fanout_all_keys"

local state_key, options_key, details_key = KEYS[1], KEYS[2], KEYS[5]
local consumer, text = ARGV[1], ARGV[2]
local wanted = #ARGV == 2 and checked_options(text)
if not wanted then
    return redis.error_reply('INVALID options do not read "mode when_failed lanes max_length when_full ..."')
end
local known, unknown = options_of(state_key, options_key, consumer)
local refused = unknown or lanes_error(known, { unpack(KEYS, FIRST_READY) })
if refused then
    return refused
end
if redis.call('HGET', options_key, consumer) == text then
    return tonumber(redis.call('HGET', state_key, 'membership'))
end
local is_rearranged = wanted.mode ~= known.mode or wanted.lanes ~= known.lanes
if is_rearranged and redis.call('EXISTS', KEYS[3], KEYS[4], unpack(KEYS, FIRST_READY)) > 0 then
    return redis.error_reply('INVALID mode and lanes can only change while no message waits or is worked on')
end
redis.call('HSET', options_key, consumer, text)
if is_rearranged then
    redis.call('HDEL', details_key, 'next_lane')
    for lane = 1, known.lanes do
        redis.call('HDEL', details_key, 'l' .. lane)
    end
end
local membership = next_membership(state_key)
redis.call('HSET', state_key, 'membership', string.format('%d', membership))
return membership
