#!lua flags=allow-oom
--[[
Purpose
    Remove expired messages, then their ids from the list of held messages, and forget old deduplication ids. Ids stay
    in the lists of consumers, which skip them.
KEYS
    [1-7]  state, messages, references, expiries, held, remembered, deduplications
ARGV
    [1]  limit           most messages, held ids looked at and deduplication ids forgotten, 1 to 1,000 each
    [2]  held_at         0 to begin; else the held_at of the last reply
    [3]  now_ms          instant; empty: the server's time
    [4]  behind          messages and deduplication ids to skip, for a caller that only counts; else 0
Returns
    {expired, more, held_at, here}  messages removed; 1 when there may be more to do; position up to which held ids
                         were looked at; number of ids removed before it
Errors
    INVALID  an argument breaks the rules above
Cost
    O(M log T + H) for M messages of T in the queue and H held ids, when there are some to remove; about 3 us per
    message. At most 1,000 of each kind.
]]
--- @include "includes/instant"
--- @include "includes/fanout_forget"
--- @include "includes/fanout_remove"

local PER_CALL = 1000

local limit, held_at, now, behind = integer(ARGV[1]), integer(ARGV[2]), instant(ARGV[3]), integer(ARGV[4] or '')
if #KEYS ~= 7 or #ARGV ~= 4 or not limit or limit < 1 or limit > PER_CALL or not now then
    return redis.error_reply('INVALID 7 keys, a limit of 1 to 1000, a place and an instant are expected')
end
if not held_at or held_at < 0 or not behind or behind < 0 then
    return redis.error_reply('INVALID held_at or what is behind is not an integer of 0 or more')
end
local ids = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', string.format('%d', now), 'LIMIT', behind, limit)
local is_going = {}
for _, id in ipairs(ids) do
    is_going[id] = true
end
-- Held messages are not claimed, so only this script removes their ids. It does so after the last page of messages.
local held = #ids < limit and redis.call('LRANGE', KEYS[5], held_at, held_at + limit - 1) or {}
local gone = 0
if #held > 0 then
    for position, count in ipairs(redis.call('HMGET', KEYS[3], unpack(held))) do
        if not count or is_going[held[position]] then
            -- Marked by position and removed together, since each search would walk through the list.
            redis.call('LSET', KEYS[5], held_at + position - 1, '')
            gone = gone + 1
        end
    end
end
if gone > 0 then
    redis.call('LREM', KEYS[5], gone, '')
end
local forgotten = forget(KEYS[6], KEYS[7], now, limit, behind)
if #ids > 0 then
    redis.call('HINCRBY', KEYS[1], 'expired', #ids)
    remove({ state = KEYS[1], messages = KEYS[2], references = KEYS[3], expiries = KEYS[4] }, ids, 0)
end
local more = #ids == limit or #held == limit or forgotten == limit
return { #ids, more and 1 or 0, held_at + #held - gone, gone }
