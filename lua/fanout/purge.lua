#!lua flags=allow-oom
--[[
Purpose
    Remove the messages that wait for a consumer: its lists and its delayed messages. Leases and dead letters stay.
KEYS
    [1-6]  state, messages, references, expiries, delayed, details
    [7+] ready           list of ids per lane
ARGV
    [1]  limit           most messages, 1 to 1,000
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

local PER_CALL = 1000
local FIRST_READY = 7

local keys = { state = KEYS[1], messages = KEYS[2], references = KEYS[3], expiries = KEYS[4] }
local delayed_key, details_key = KEYS[5], KEYS[6]
local ready = { unpack(KEYS, FIRST_READY) }
local limit = integer(ARGV[1])
if #ready < 1 or #ARGV ~= 1 or not limit or limit < 1 or limit > PER_CALL then
    return redis.error_reply('INVALID keys of the lanes and a limit of 1 to 1000 are expected')
end
local waiting = redis.call('ZCARD', delayed_key)
for _, key in ipairs(ready) do
    waiting = waiting + redis.call('LLEN', key)
end
local given_up = redis.call('ZRANGE', delayed_key, 0, limit - 1)
if #given_up > 0 then
    redis.call('ZREM', delayed_key, unpack(given_up))
end
for lane, key in ipairs(ready) do
    if #given_up < limit then
        local ids = redis.call('LPOP', key, limit - #given_up) or {}
        unblock(details_key, lane, ids)
        for _, id in ipairs(ids) do
            given_up[#given_up + 1] = id
        end
    end
end
if #given_up == 0 then
    return { 0, 0, 0 }
end
redis.call('HDEL', details_key, unpack(given_up))
redis.call('HINCRBY', details_key, 'purged', #given_up)
local freed = release(keys, given_up)
return { #given_up, freed, #given_up < waiting and 1 or 0 }
