#!lua flags=allow-oom
--[[
Purpose
    Extend the leases of messages from now on, and keep their payloads at least as long.
KEYS
    [1-4]  messages, expiries, leases, details
ARGV
    [1]  token           of the lease
    [2]  lease_ms        how long it lasts, 1 or more
    [3]  now_ms          instant; empty: the server's time
    [4+] ids             messages; a lease that has run out but was not ended is accepted
Returns
    {deadline_ms, *stale}  deadline of the extended leases; ids whose lease is no longer the caller's
Errors
    INVALID  an argument breaks the rules above, or there are none or more than 1,000 ids
Cost
    O(M log L) for M ids and L leases; about 10 us for one, 5 us per further one, on two busy
    cores. At most 1,000 ids.
]]
--- @include "includes/instant"
--- @include "includes/fanout_entries"
--- @include "includes/fanout_tokens"
--- @include "includes/fanout_ids"
--- @include "includes/fanout_keep"

local IDS_PER_CALL = 1000
local FIRST_ID = 4

local keys, leases_key, details_key = { messages = KEYS[1], expiries = KEYS[2] }, KEYS[3], KEYS[4]
local token, lease_ms = ARGV[1], integer(ARGV[2])
local count = #ARGV - FIRST_ID + 1
if #KEYS ~= 4 or count < 1 or count > IDS_PER_CALL or not are_ids(ARGV, FIRST_ID) then
    return redis.error_reply('INVALID 4 keys, 3 arguments and 1 to ' .. IDS_PER_CALL .. ' ids are expected')
end
local now = instant(ARGV[3])
if not is_token(token) or not lease_ms or lease_ms < 1 or not now then
    return redis.error_reply('INVALID token is not one of a claim, or lease or now is not an integer of 1 or more')
end

local deadline = string.format('%d', now + lease_ms)
local reply, extended = { deadline }, {}
for position, entry in ipairs(redis.call('HMGET', details_key, unpack(ARGV, FIRST_ID))) do
    local id = ARGV[FIRST_ID - 1 + position]
    local _, _, _, owner = read_entry(entry)
    if owner == token then
        redis.call('ZADD', leases_key, 'XX', deadline, id)
        extended[#extended + 1] = id
    else
        reply[#reply + 1] = id
    end
end
if #extended > 0 then
    keep(keys, now + lease_ms, extended)
end
return reply
