#!lua flags=allow-oom
--[[
Purpose
    Remove messages that are held for later consumers, oldest first.
KEYS
    [1-5]  state, messages, references, expiries, held
ARGV
    [1]  limit           most messages, 1 to 1,000
Returns
    {released, freed, more}  ids that are no longer held; messages removed; 1 when there are more
Errors
    INVALID  an argument breaks the rules above
Cost
    O(M log T) for M messages of T in the queue; about 5 us per message. At most 1,000.
]]
--- @include "includes/integers"
--- @include "includes/fanout_release"

local PER_CALL = 1000

local keys = { state = KEYS[1], messages = KEYS[2], references = KEYS[3], expiries = KEYS[4] }
local limit = integer(ARGV[1])
if #KEYS ~= 5 or #ARGV ~= 1 or not limit or limit < 1 or limit > PER_CALL then
    return redis.error_reply('INVALID 5 keys and a limit of 1 to 1000 are expected')
end
local held = redis.call('LLEN', KEYS[5])
local given_up = redis.call('LPOP', KEYS[5], limit) or {}
local freed = release(keys, given_up)
return { #given_up, freed, #given_up < held and 1 or 0 }
