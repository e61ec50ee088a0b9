#!lua flags=allow-oom
--[[
Purpose
    Put messages of the log in line for a consumer, for calls that need all that waits for it in its own lists.
KEYS
    [1-5]  state, options, log, cursors, details
    [6+] ready           list of ids per lane
ARGV
    [1]  consumer        its name
    [2]  limit           most messages, 1 to 1,000, or the rest of a publish more
Returns
    in_log               messages that are still in the log; 0 for a consumer without a cursor
Errors
    INVALID  an argument breaks the rules above
    UNKNOWN_QUEUE, UNKNOWN_CONSUMER  there is no such queue, or no such consumer is registered
    VERSION  the consumer has another number of lanes
Cost
    O(M) for M messages; about 1 us per message. At most 1,099.
]]
--- @include "includes/integers"
--- @include "includes/fanout_consumer"
--- @include "includes/fanout_lanes"
--- @include "includes/fanout_pull"

local FIRST_READY = 6
--- @include "includes/fanout_all_keys"
--- @keys

local limit = integer(ARGV[2])
if #ARGV ~= 2 or not limit or limit < 1 or limit > PULLED_PER_CALL then
    return redis.error_reply('INVALID the name of a consumer and a limit of 1 to 1000 are expected')
end
--- @include "includes/fanout_own_options"

return pull(keys, ARGV[1], limit)
