#!lua flags=allow-oom
--[[
Purpose
    Remove the messages that wait for a consumer: in its lists, in the log, and its delayed messages. Leases and dead
    letters stay.
KEYS
    [1-8]  state, messages, references, expiries, log, cursors, delayed, details
    [9+] ready           list of ids per lane
ARGV
    [1]  consumer        its name
    [2]  limit           most messages, 1 to 1,000
Returns
    {released, freed, more}  messages that it owed an ack; those of them that were removed; 1 when there are more
Errors
    INVALID  an argument breaks the rules above
Cost
    O(M log T) for M messages of T in the queue; about 5 us per message. At most 1,000.
]]
--- @include "includes/integers"
--- @include "includes/fanout_release"
--- @include "includes/fanout_unblock"
--- @include "includes/fanout_pull"

local PER_CALL = 1000
local FIRST_READY = 9
--- @include "includes/fanout_all_keys"
--- @keys
local limit = integer(ARGV[2])
if #ARGV ~= 2 or not limit or limit < 1 or limit > PER_CALL then
    return redis.error_reply('INVALID the name of a consumer and a limit of 1 to 1000 are expected')
end
local waiting = pull(keys, ARGV[1], limit) + redis.call('ZCARD', keys.delayed)
for _, key in ipairs(keys.ready) do
    waiting = waiting + redis.call('LLEN', key)
end
local given_up = redis.call('ZRANGE', keys.delayed, 0, limit - 1)
if #given_up > 0 then
    redis.call('ZREM', keys.delayed, unpack(given_up))
end
for lane, key in ipairs(keys.ready) do
    if #given_up < limit then
        local ids = redis.call('LPOP', key, limit - #given_up) or {}
        unblock(keys.details, lane, ids)
        for _, id in ipairs(ids) do
            given_up[#given_up + 1] = id
        end
    end
end
if #given_up == 0 then
    return { 0, 0, 0 }
end
redis.call('HDEL', keys.details, unpack(given_up))
redis.call('HINCRBY', keys.details, 'purged', #given_up)
local freed = release(keys, given_up)
return { #given_up, freed, #given_up < waiting and 1 or 0 }
