#!lua flags=allow-oom
--[[
Purpose
    Allow claims again, also by an ordered consumer that a dead letter has halted, and wake waiting consumers.
KEYS
    [1-2]  state, options
    [3]  paused          hash that records the pause: the consumer's details, or the queue's state
    [4+] wakes           of the consumer, or of each, at most 1,000
ARGV
    [1]  consumer        its name; empty for the whole queue
Returns
    1  it goes on now
    0  it was not paused
Errors
    INVALID  3 keys, wakes and an argument are expected
    UNKNOWN_QUEUE, UNKNOWN_CONSUMER  there is no such queue, or no such consumer is registered
Cost
    O(W) for W wakes; about 5 us, 1 us per wake.
]]
--- @include "includes/fanout_pausable"
--- @include "includes/fanout_wake"

local FIRST_WAKE = 4

if #KEYS < 3 or #KEYS > 1003 or #ARGV ~= 1 then
    return redis.error_reply('INVALID 3 keys, at most 1000 wakes and an argument are expected')
end
local refused = pausable_error(KEYS[1], KEYS[2], ARGV[1])
if refused then
    return refused
end
local resumed = redis.call('HDEL', KEYS[3], 'paused')
for index = FIRST_WAKE, #KEYS do
    wake(KEYS[index])
end
return resumed
