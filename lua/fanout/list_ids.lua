#!lua flags=no-writes
--[[
Purpose
    List the ids in a key of a queue or consumer, page by page, for verify, repair and adopt.
KEYS
    [1]  holder          messages, references, expiries, held, log, details, or a set or list of a consumer
ARGV
    [1]  cursor          0 to begin; else the cursor of the last reply
    [2]  limit           approximate number of ids, 1 to 1,000
    [3]  with_values     1: with the value of each id; else 0. Hashes have some, references and details, and the log:
                         the number of the entry with the id
Returns
    {cursor, *ids}       0 at the end. In a hash what stays meanwhile comes, perhaps twice; in a list or set that
                         changes some may be missed
    {"values", cursor, *entries(id, value)}  the same, with with_values
Errors
    INVALID  an argument breaks the rules above
Cost
    O(M) for M ids, and for a list O(cursor); about 1 us per id, and the copying of messages.
]]
--- @include "includes/integers"
--- @include "includes/fanout_ids"
--- @include "includes/hash_page"

local PER_CALL = 1000

local limit = integer(ARGV[2])
if #KEYS ~= 1 or #ARGV ~= 3 or not string.find(ARGV[1], '^[%x/]+$') or (ARGV[3] ~= '0' and ARGV[3] ~= '1') then
    return redis.error_reply('INVALID a key, a cursor, a limit, and 0 or 1 are expected')
end
if not limit or limit < 1 or limit > PER_CALL then
    return redis.error_reply('INVALID limit is not an integer from 1 to ' .. PER_CALL)
end
local with_values = ARGV[3] == '1'
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind == 'hash' or with_values and kind ~= 'stream' then
    local cursor, page = hash_page(KEYS[1], ARGV[1], limit)
    local reply = with_values and { 'values', cursor } or { cursor }
    for index = 1, #page, 2 do
        -- The hash holds notes on ids, reasons of dead letters, and counters, whose names are words.
        if not with_values then
            reply[#reply + 1] = string.match(page[index], '^e?(%d+)$')
        elseif string.find(page[index], '^%d+$') then
            reply[#reply + 1], reply[#reply + 2] = page[index], page[index + 1]
        end
    end
    return reply
end
local offset = tonumber(ARGV[1]) or 0
if kind == 'stream' then
    local entries = redis.call('XRANGE', KEYS[1], string.format('(%d-0', offset), '+', 'COUNT', limit)
    local count, number = 0, '0'
    local reply = { 'values', '0' }
    for _, entry in ipairs(entries) do
        if count >= limit then
            break
        end
        number = string.match(entry[1], '^%d+')
        for id in string.gmatch(entry[2][2], '(%d+):?%d*') do
            count = count + 1
            reply[#reply + 1], reply[#reply + 2] = id, number
        end
    end
    reply[2] = (count >= limit or #entries == limit) and number or '0'
    return reply
end
local ids = {}
if kind == 'list' then
    ids = redis.call('LRANGE', KEYS[1], offset, offset + limit - 1)
elseif kind == 'zset' then
    ids = redis.call('ZRANGE', KEYS[1], offset, offset + limit - 1)
end
local reply = { #ids == limit and string.format('%d', offset + limit) or '0' }
for _, id in ipairs(ids) do
    if are_ids({ id }, 1) then
        reply[#reply + 1] = id
    end
end
return reply
