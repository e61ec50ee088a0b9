#!lua flags=allow-oom
--[[
Purpose
    Repair the entries of some ids in a queue and its consumers: a wrong count, a message that no consumer owes an ack
    for, an ack owed for a message that is gone, a lease without a token, an id in two places, notes on an id that is in
    no place, a message without an expiry. Correct entries are not changed.
KEYS
    [1-7]  state, messages, references, expiries, log, cursors, held
    [8+] consumer_keys   per consumer, leaving ones too: its leases, delayed, dead, details, and ready lists
ARGV
    [1]  membership      its number, by which all consumers are known, also if they are named in several calls
    [2]  now_ms          instant; empty: the server's time
    [3]  consumers       number of consumers that are named
    [4+] values          per consumer its name and lanes, 0 when it is not ordered and has one list; then three values
                         for each of 1 to 100 different ids: the id; number of unnamed consumers that have it, or - to
                         leave count and message alone; the count when these were found, -1 for none, or empty when all
                         consumers are named. If the count differs now, count and message stay as they are
Returns
    {looked_at, missing, freed, recounted, leases, doubled, notes, expiries}  number of ids that this call has looked
                         at, from the first on: continue after them; places of messages that are gone; messages
                         removed; counts set; leases ended; second places removed; notes removed; expiries set or
                         removed
Errors
    INVALID   an argument breaks the rules above
    VERSION   the membership is another one
    TOO_LONG  the lists have more than 1,000,000 entries: name fewer consumers
Cost
    As verify.
]]
--- @include "includes/fanout_recount"
--- @include "includes/fanout_pull"
--- @include "includes/instant"

local FIRST_CONSUMER_KEY = 8
local FIRST_VALUE = 4
local VALUES_PER_ID = 3
-- Farther back in the log, the id of a message that is gone stays until it is skipped.

local state_key, messages_key, references_key, expiries_key, held_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[7]
local keys = { state = state_key, log = KEYS[5], cursors = KEYS[6] }
local now = instant(ARGV[2] or '-')
if #KEYS < FIRST_CONSUMER_KEY - 1 or not integer(ARGV[1]) or not now or not integer(ARGV[3]) then
    return redis.error_reply('INVALID 7 keys or more, a membership, an instant and a number of consumers are expected')
end
local consumers, ids, first_id = read_holders(keys, FIRST_CONSUMER_KEY, FIRST_VALUE, VALUES_PER_ID)
if not consumers then
    return ids
end
for index = first_id, #ARGV, VALUES_PER_ID do
    local elsewhere, told = ARGV[index + 1], ARGV[index + 2]
    if (elsewhere ~= '-' and not integer(elsewhere)) or (told ~= '' and told ~= '-1' and not integer(told)) then
        return redis.error_reply('INVALID number of others or count is no integer')
    end
end
if (redis.call('HGET', state_key, 'membership') or '0') ~= ARGV[1] then
    return redis.error_reply('VERSION the membership is another one')
end

local missing, freed, recounted, leases, doubled, noted, expiries = 0, 0, 0, 0, 0, 0, 0

-- Members to remove from each key, which is done last: while a cluster moves a slot, a script must not touch a key
-- again that it has emptied.
local going = { sets = {}, hashes = {}, lists = {}, repeated = {} }
local function remove(kind, key, id)
    local ids_of_key = going[kind][key] or {}
    going[kind][key] = ids_of_key
    ids_of_key[#ids_of_key + 1] = id
end

local function forget_notes(consumer, id)
    remove('hashes', consumer.details, id)
    remove('hashes', consumer.details, 'e' .. id)
end

-- Removes an id from all places of a consumer but one.
local function withdraw(consumer, id, kept, list)
    if kept ~= 'l' then
        remove('sets', consumer.leases, id)
    end
    if kept ~= 'd' then
        remove('sets', consumer.delayed, id)
    end
    if kept ~= 'x' then
        remove('sets', consumer.dead, id)
    end
    for _, key in ipairs(consumer.ready) do
        remove(kept == 'r' and key == list and 'repeated' or 'lists', key, id)
    end
end

for position, id in ipairs(ids) do
    local index = first_id + VALUES_PER_ID * (position - 1)
    local elsewhere, told = tonumber(ARGV[index + 1]), ARGV[index + 2]
    local message = redis.call('HGET', messages_key, id)
    local expires_at, order_hash = string.match(message or '', '^%d+:(%d+):(%d+):')
    local owed = elsewhere or 0
    if redis.call('LPOS', held_key, id) then
        if message then
            owed = owed + 1
        else
            remove('lists', held_key, id)
            missing = missing + 1
        end
    end
    local number_of_entry = number_in_log(keys, id)
    for _, consumer in ipairs(consumers) do
        local found, list = places_of(consumer, id, now, number_of_entry)
        if found == 'n' then
            forget_notes(consumer, id)
            noted = noted + 1
        elseif found ~= '' and not message then
            if string.find(found, 'g') and number_of_entry - consumer.cursor <= PULLED_PER_CALL then
                pull(consumer, consumer.name, number_of_entry - consumer.cursor)
                consumer.cursor = number_of_entry
            end
            withdraw(consumer, id)
            forget_notes(consumer, id)
            missing = missing + 1
        elseif found ~= '' then
            owed = owed + 1
            if #found > 1 then
                -- The place in the log stays in any case; else a worker's lease is kept first, then the place in a
                -- list, then the retry, then the dead letter.
                local kept = string.match(found, 'g') or string.match(found, 'l') or string.match(found, 'r')
                kept = kept or string.match(found, 'd') or 'x'
                withdraw(consumer, id, kept, list)
                doubled = doubled + 1
            elseif found == 'u' then
                local lane = consumer.lanes > 0 and tonumber(order_hash or 0) % consumer.lanes + 1 or 1
                remove('sets', consumer.leases, id)
                redis.call('LPUSH', consumer.ready[lane], id)
                leases = leases + 1
            end
        end
    end
    local count = redis.call('HGET', references_key, id)
    local is_settled = elsewhere and (told == '' or told == (count or '-1'))
    if message and owed == 0 and is_settled then
        remove('hashes', messages_key, id)
        remove('hashes', references_key, id)
        remove('sets', expiries_key, id)
        redis.call('HINCRBY', state_key, 'bytes', string.format('%d', -#message))
        freed = freed + 1
    elseif message then
        if is_settled and count ~= string.format('%d', owed) then
            redis.call('HSET', references_key, id, owed)
            recounted = recounted + 1
        end
        if not redis.call('ZSCORE', expiries_key, id) then
            redis.call('ZADD', expiries_key, expires_at or 0, id)
            expiries = expiries + 1
        end
    else
        if count then
            remove('hashes', references_key, id)
            recounted = recounted + 1
        end
        if redis.call('ZSCORE', expiries_key, id) then
            remove('sets', expiries_key, id)
            expiries = expiries + 1
        end
    end
end
for key, members in pairs(going.sets) do
    redis.call('ZREM', key, unpack(members))
end
for key, names in pairs(going.hashes) do
    redis.call('HDEL', key, unpack(names))
end
for key, values in pairs(going.repeated) do
    for _, id in ipairs(values) do
        local positions = redis.call('LPOS', key, id, 'COUNT', 0)
        if #positions > 1 then
            redis.call('LREM', key, 1 - #positions, id)
        end
    end
end
for key, values in pairs(going.lists) do
    local left = redis.call('LLEN', key)
    for _, id in ipairs(values) do
        if left > 0 then
            left = left - redis.call('LREM', key, 0, id)
        end
    end
end
return { #ids, missing, freed, recounted, leases, doubled, noted, expiries }
