#!lua flags=allow-oom
--[[
Purpose
    Remove dead letters.
KEYS
    [1-6]  state, messages, references, expiries, dead, details
ARGV
    [1]  died_before_ms  letters that died at this instant or later stay; empty: any may be removed
    [2]  limit           most letters, 1 to 500
    [3]  behind          letters to skip, for a caller that only counts; else 0
    [4+] ids             letters to remove, at most 500; none for the oldest ones
Returns
    {purged, freed, more}  letters removed; those of them whose message was removed, too; 1 when there are more letters
                         that old
Errors
    INVALID  an argument breaks the rules above
Cost
    O(M log D) for M of D letters; about 10 us per letter on two busy cores. At most 500.
]]
--- @include "includes/integers"
--- @include "includes/fanout_ids"
--- @include "includes/fanout_release"

local PER_CALL = 500
local FIRST_ID = 4

local keys = { state = KEYS[1], messages = KEYS[2], references = KEYS[3], expiries = KEYS[4] }
local dead_key, details_key = KEYS[5], KEYS[6]
local before, limit, behind = integer(ARGV[1]), integer(ARGV[2]), integer(ARGV[3] or '')
if #KEYS ~= 6 or #ARGV < FIRST_ID - 1 or (ARGV[1] ~= '' and not before)
    or not behind or behind < 0
then
    return redis.error_reply('INVALID 6 keys, an instant or nothing, a limit and what is behind are expected')
end
if not limit or limit < 1 or limit > PER_CALL or #ARGV - FIRST_ID + 1 > PER_CALL or not are_ids(ARGV, FIRST_ID) then
    return redis.error_reply('INVALID limit is not an integer from 1 to 500, or there are more ids, or other values')
end

local highest = before and '(' .. ARGV[1] or '+inf'
local going, notes, more, seen = {}, {}, 0, {}
if #ARGV < FIRST_ID then
    going = redis.call('ZRANGEBYSCORE', dead_key, '-inf', highest, 'LIMIT', behind, limit)
    more = #going == limit and 1 or 0
else
    for position, died in ipairs(redis.call('ZMSCORE', dead_key, unpack(ARGV, FIRST_ID))) do
        local id = ARGV[FIRST_ID - 1 + position]
        if died and not seen[id] and not (before and tonumber(died) >= before) then
            seen[id] = true
            going[#going + 1] = id
        end
    end
end
if #going == 0 then
    return { 0, 0, 0 }
end
for _, id in ipairs(going) do
    notes[#notes + 1] = id
    notes[#notes + 1] = 'e' .. id
end
local freed = release(keys, going)
redis.call('ZREM', dead_key, unpack(going))
redis.call('HDEL', details_key, unpack(notes))
return { #going, freed, more }
