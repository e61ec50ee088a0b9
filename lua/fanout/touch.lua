#!lua flags=allow-oom
--[[
Purpose
    Record that a consumer is alive, so that it is not unregistered as idle. A claim records it, too.
KEYS
    [1-3]  state, options, consumers
ARGV
    [1]  consumer        its name
    [2]  now_ms          instant; empty: the server's time
Returns
    seen_ms              the recorded instant
Errors
    INVALID  an argument breaks the rules above
    UNKNOWN_QUEUE, UNKNOWN_CONSUMER  there is no such queue, or no such consumer is registered
Cost
    O(log C) for C members; about 10 us on two busy cores.
]]
--- @include "includes/instant"
--- @include "includes/fanout_consumer"

local now = instant(ARGV[2])
if #KEYS ~= 3 or #ARGV ~= 2 or not now then
    return redis.error_reply('INVALID 3 keys, a name and an instant are expected')
end
local options, unknown = options_of(KEYS[1], KEYS[2], ARGV[1])
if not options then
    return unknown
end
redis.call('ZADD', KEYS[3], string.format('%d', now), ARGV[1])
return now
