#!lua flags=no-writes
--[[
Purpose
    Return for each id the entries of the queue and the consumers that have it, to be compared.
KEYS
    [1-7]  state, messages, references, expiries, log, cursors, held
    [8+] consumer_keys   per consumer, leaving ones too: its leases, delayed, dead, details, and ready lists
ARGV
    [1]  membership      its number, by which all consumers are known, also if they are named in several calls
    [2]  now_ms          instant; empty: the server's time
    [3]  consumers       number of consumers that are named
    [4+] values          per consumer its name and lanes, 0 when it is not ordered and has one list; then 1 to 100
                         different ids
Returns
    {*rows(id, has_message, references, expires_at_ms, places)}
                         five values per id; the count and the expiry, as text, are -1 when there is none, and when the
                         payload was removed by its own expiry; places has a word per consumer that has the id: its
                         position in the call, from 1, and a letter per place: r ready, g in the log, d delayed, l
                         leased, u leased without a token and not overdue, x dead letter, n only notes; "0h" for held.
                         There may be fewer ids than were asked about: continue after the last
Errors
    INVALID   an argument breaks the rules above
    VERSION   the membership is another one
    TOO_LONG  the lists have more than 1,000,000 entries: name fewer consumers
Cost
    O(M N) for M ids and N entries in the lists of these consumers and of held ids; at most 1,000,000 comparisons, about
    10 ms.
]]
--- @include "includes/fanout_recount"
--- @include "includes/instant"

local FIRST_CONSUMER_KEY = 8
local FIRST_VALUE = 4

local keys = { state = KEYS[1], log = KEYS[5], cursors = KEYS[6] }
local now = instant(ARGV[2] or '-')
if #KEYS < FIRST_CONSUMER_KEY - 1 or not integer(ARGV[1]) or not now or not integer(ARGV[3]) then
    return redis.error_reply('INVALID 7 keys or more, a membership, an instant and a number of consumers are expected')
end
local consumers, ids = read_holders(keys, FIRST_CONSUMER_KEY, FIRST_VALUE, 1)
if not consumers then
    return ids
end
if (redis.call('HGET', KEYS[1], 'membership') or '0') ~= ARGV[1] then
    return redis.error_reply('VERSION the membership is another one')
end
local reply = {}
for _, id in ipairs(ids) do
    local places = {}
    if redis.call('LPOS', KEYS[7], id) then
        places[1] = '0h'
    end
    local number_of_entry = number_in_log(keys, id)
    for number, consumer in ipairs(consumers) do
        local found = places_of(consumer, id, now, number_of_entry)
        if found ~= '' then
            places[#places + 1] = number .. found
        end
    end
    local size = #reply
    local has_message, ends = redis.call('HEXISTS', KEYS[2], id), redis.call('ZSCORE', KEYS[4], id)
    local has_expired = has_message == 0 and ends and tonumber(ends) <= now
    reply[size + 1], reply[size + 2] = id, has_message
    reply[size + 3] = not has_expired and tonumber(redis.call('HGET', KEYS[3], id) or nil) or -1
    reply[size + 4] = not has_expired and ends or '-1'
    reply[size + 5] = table.concat(places, ' ')
end
return reply
