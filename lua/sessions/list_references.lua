#!lua flags=no-writes
--[[
Purpose
    Read a page of a session's references, in the order of delivery.
KEYS
    [1]  messages        sorted set of references
ARGV
    [1]  by              rank or serial
    [2]  start           rank of the first reference, from 0; or the serial before it
    [3]  limit           1 to 1000
Returns
    {*references(member, score)}  two texts per reference
Errors
    INVALID  an argument breaks the rules above
Cost
    O(log N + L) for N references and a limit of L; about 1 us per reference.
]]
--- @include "includes/integers"

local REFERENCES_PER_CALL = 1000

local by, start, limit = ARGV[1], integer(ARGV[2]), integer(ARGV[3])
if #KEYS ~= 1 or #ARGV ~= 3 then
    return redis.error_reply('INVALID 1 key and 3 arguments are expected')
end
if not start then
    return redis.error_reply('INVALID start is not an integer')
end
if not limit or limit < 1 or limit > REFERENCES_PER_CALL then
    return redis.error_reply('INVALID limit is not an integer from 1 to ' .. REFERENCES_PER_CALL)
end
if by == 'serial' then
    return redis.call(
        'ZRANGE', KEYS[1], '(' .. ARGV[2], '+inf', 'BYSCORE', 'LIMIT', '0', ARGV[3], 'WITHSCORES'
    )
end
if by ~= 'rank' or start < 0 then
    return redis.error_reply('INVALID references are listed by serial, or by rank from 0')
end
return redis.call('ZRANGE', KEYS[1], ARGV[2], string.format('%d', start + limit - 1), 'WITHSCORES')
