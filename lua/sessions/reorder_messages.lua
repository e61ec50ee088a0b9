#!lua
--[[
Purpose
    Give references other serials, all of them or none, and place later messages after them. A reference that is gone is
    skipped.
KEYS
    [1]  messages        sorted set of references
    [2]  session         fields of the session
    [3+] payloads        members of the set
ARGV
    [1]  highest           highest serial of the session after all calls; later serials are greater
    [2]  delivered_serial  new serial up to which messages have been sent; empty: it stays
    [3]  references        number of members that the set must have; empty: it is not checked
    [4]  last_score        score that the last member must have; empty: it is not checked
    [5+] serials           a pair per payload: the score that it has, and the serial that it gets, 0 or more
Returns
    {*done}  per payload key whether it has its new serial now, or is gone
    {}           one of them has another score, or the set has changed; nothing was written
Errors
    INVALID  an argument breaks the rules above, or there are too many payload keys
Cost
    O(M log N) for M payload keys and N references; about 3 us per key. At most 500 keys.
]]
--- @include "includes/integers"
--- @include "includes/mirrored"

local PAYLOAD_KEYS_PER_CALL = 500
local FIRST_PAYLOAD = 3
local FIRST_PAIR = 5

local messages_key, session_key, delivered_serial = KEYS[1], KEYS[2], ARGV[2]
local highest = integer(ARGV[1])
local count = #KEYS - FIRST_PAYLOAD + 1
if count < 1 or #ARGV ~= FIRST_PAIR - 1 + 2 * count then
    return redis.error_reply('INVALID 2 keys and a key per message, 4 arguments and 2 per message are expected')
end
--- @include "includes/payload_limit"
if not highest or (delivered_serial ~= '' and not integer(delivered_serial)) then
    return redis.error_reply('INVALID highest or delivered serial is not an integer')
end
if (ARGV[3] ~= '' and not integer(ARGV[3])) or (ARGV[4] ~= '' and not tonumber(ARGV[4])) then
    return redis.error_reply('INVALID references or last score is not a number')
end
for index = 1, count do
    local at = FIRST_PAIR + 2 * (index - 1)
    local serial = integer(ARGV[at + 1])
    if not tonumber(ARGV[at]) or not serial or serial < 0 or serial > highest then
        return redis.error_reply('INVALID serial of message ' .. index .. ' is not an integer up to the highest')
    end
end

if ARGV[3] ~= '' and redis.call('ZCARD', messages_key) ~= integer(ARGV[3]) then
    return {}
end
if ARGV[4] ~= '' then
    local last = redis.call('ZRANGE', messages_key, '0', '0', 'REV', 'WITHSCORES')
    if tonumber(last[2] or nil) ~= tonumber(ARGV[4]) then
        return {}
    end
end
local moved, scored = {}, {}
for position, score in ipairs(redis.call('ZMSCORE', messages_key, unpack(KEYS, FIRST_PAYLOAD))) do
    local at = FIRST_PAIR + 2 * (position - 1)
    if score and tonumber(score) ~= tonumber(ARGV[at]) then
        return {}
    end
    moved[position] = score and 1 or 0
    if score then
        scored[#scored + 1] = ARGV[at + 1]
        scored[#scored + 1] = KEYS[FIRST_PAYLOAD - 1 + position]
    end
end
if #scored == 0 then
    return moved
end
redis.call('ZADD', messages_key, 'XX', unpack(scored))
note_all(session_key)
local fields = redis.call('HMGET', session_key, 'last_serial', 'delivered_serial')
local last_serial = tonumber(fields[1] or nil)
if last_serial and last_serial < highest then
    redis.call('HSET', session_key, 'last_serial', ARGV[1])
end
if fields[2] and delivered_serial ~= '' then
    redis.call('HSET', session_key, 'delivered_serial', delivered_serial)
end
return moved
