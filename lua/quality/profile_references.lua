#!lua flags=no-writes
--[[
Purpose
    Measure a session's keys, and a page of its references in the order of delivery. Only numbers are returned: no text
    of the session leaves the server.
KEYS
    [1]  messages        sorted set of references
    [2]  last_packet_id  last packet id
    [3]  session         fields of the session
ARGV
    [1]  start           rank of the first reference, from 0
    [2]  limit           1 to 1000
Returns
    {references, wrong_types, without_expiry, last_packet_id, saved, newest_packet_id,
     *page(serial, packet_id)}
                         members of the set; keys of the wrong type; keys that would never expire; last packet id, -1
                         without one, -2 when it is not a packet id; 1 if our own store has saved; packet id of the
                         reference with the highest serial; then a pair per reference. A serial is -1 when it is
                         negative, not a whole number or beyond 2^53. A packet id is -1 when the member is not a
                         payload key of this session, -2 when the end of the key is not a number
Errors
    INVALID  an argument breaks the rules above
Cost
    O(log N + L) for N references and a limit of L; about 5 us, and 3 us per reference.
]]
--- @include "includes/integers"
--- @include "includes/last_packet_id"

local REFERENCES_PER_CALL = 1000
local FOREIGN, UNREADABLE, MISSING = -1, -2, -1

local messages_key, last_packet_id_key, session_key = KEYS[1], KEYS[2], KEYS[3]
local start, limit = integer(ARGV[1]), integer(ARGV[2])
if #KEYS ~= 3 or #ARGV ~= 2 then
    return redis.error_reply('INVALID 3 keys and 2 arguments are expected')
end
if not start or start < 0 then
    return redis.error_reply('INVALID start is not an integer of 0 or more')
end
if not limit or limit < 1 or limit > REFERENCES_PER_CALL then
    return redis.error_reply('INVALID limit is not an integer from 1 to ' .. REFERENCES_PER_CALL)
end

-- Names of payload keys are compared, not made, since scripts access only declared keys.
local stem = messages_key .. '_'

local sub, find = string.sub, string.find

-- Only plain decimal text is accepted, since any other text names another key.
local function packet_id_of(member)
    if sub(member, 1, #stem) ~= stem then
        return FOREIGN
    end
    if find(member, '^[1-9]%d*$', #stem + 1) and #member <= #stem + 9 then
        return tonumber(sub(member, #stem + 1))
    end
    return sub(member, #stem + 1) == '0' and 0 or UNREADABLE
end

local wrong_types, without_expiry = 0, 0
local function type_of(key, expected)
    local found = redis.call('TYPE', key).ok
    if found ~= 'none' then
        if redis.call('PEXPIRETIME', key) == -1 then
            without_expiry = without_expiry + 1
        end
        if found ~= expected then
            wrong_types = wrong_types + 1
        end
    end
    return found
end

local references, newest = 0, FOREIGN
local page = {}
if type_of(messages_key, 'zset') == 'zset' then
    references = redis.call('ZCARD', messages_key)
    newest = packet_id_of(redis.call('ZRANGE', messages_key, '0', '0', 'REV')[1])
    page = redis.call('ZRANGE', messages_key, ARGV[1], string.format('%d', start + limit - 1), 'WITHSCORES')
end
local last_packet_id = UNREADABLE
local counter_type = type_of(last_packet_id_key, 'string')
if counter_type == 'none' then
    last_packet_id = MISSING
elseif counter_type == 'string' then
    local text = redis.call('GET', last_packet_id_key)
    if text ~= '' and is_last_packet_id(text) then
        last_packet_id = tonumber(text)
    end
end
local saved = 0
if type_of(session_key, 'hash') == 'hash' then
    saved = redis.call('HEXISTS', session_key, 'saved_last_packet_id')
end

local reply = { references, wrong_types, without_expiry, last_packet_id, saved, newest }
for index = 1, #page, 2 do
    local serial = tonumber(page[index + 1])
    if serial < 0 or serial > 9007199254740992 or serial % 1 ~= 0 then
        serial = -1
    end
    reply[index + 6] = serial
    reply[index + 7] = packet_id_of(page[index])
end
return reply
