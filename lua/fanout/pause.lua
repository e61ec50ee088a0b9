#!lua flags=allow-oom
--[[
Purpose
    Stop claims by one consumer or by all; claimed messages can be finished, and publishing continues.
KEYS
    [1-2]  state, options
    [3]  paused          hash that records the pause: the consumer's details, or the queue's state
ARGV
    [1]  consumer        its name; empty for the whole queue
Returns
    1  it is paused now
    0  it was before
Errors
    INVALID  3 keys and an argument are expected
    UNKNOWN_QUEUE, UNKNOWN_CONSUMER  there is no such queue, or no such consumer is registered
Cost
    O(1); about 3 us.
]]
--- @include "includes/fanout_pausable"

if #KEYS ~= 3 or #ARGV ~= 1 then
    return redis.error_reply('INVALID 3 keys and an argument are expected')
end
local refused = pausable_error(KEYS[1], KEYS[2], ARGV[1])
if refused then
    return refused
end
return redis.call('HSETNX', KEYS[3], 'paused', 'asked')
