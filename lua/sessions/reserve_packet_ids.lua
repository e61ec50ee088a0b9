#!lua
--[[
Purpose
    Reserve packet ids for messages that are stored elsewhere.
KEYS
    [1]  messages        sorted set of references
    [2]  last_packet_id  last packet id
    [3]  session         fields of the session
    [4+] payloads        payload keys of the packet ids, to check that they are not in use
ARGV
    [1]  epoch           of the session as the caller knows it; empty: the caller does not know owners
    [2]  expected        last packet id that the caller knows; empty: the key is absent
    [3]  last_packet_id  last packet id to reserve, 1 to 65535
    [4]  keep_ms         shortest time for which the last packet id is kept from now on; empty: for ever, as in a
                         session with a mirror
Returns
    {"reserved"}  the packet ids are reserved for the caller
    {"conflict", last_packet_id, *positions}  the last packet id is this one and not the expected one, or else
                  the packet ids of the keys at these positions, from 0, are in use; nothing was written
Errors
    INVALID    an argument breaks the rules above
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(M) for M packet ids; about 10 us per call and 1 us per packet id. At most 1,000.
]]
--- @include "includes/guard"
--- @include "includes/integers"
--- @include "includes/move_last_packet_id"
--- @include "includes/outbox"
local function is_packet_id(text)
    local number = integer(text)
    return number ~= nil and number >= 1 and number <= 65535
end
--- @include "includes/set_last_packet_id"

local PAYLOAD_KEYS_PER_CALL = 1000
local FIRST_PAYLOAD = 4

local messages_key, last_packet_id_key, session_key = KEYS[1], KEYS[2], KEYS[3]
local epoch, expected, last_packet_id = ARGV[1], ARGV[2], ARGV[3]
local count = #KEYS - FIRST_PAYLOAD + 1
if count < 1 or count > PAYLOAD_KEYS_PER_CALL or #ARGV ~= 4 then
    return redis.error_reply(
        'INVALID 3 keys, 1 to ' .. PAYLOAD_KEYS_PER_CALL .. ' payload keys and 4 arguments are expected'
    )
end
if not is_packet_id(last_packet_id) then
    return redis.error_reply('INVALID last one to give out is not an integer from 1 to 65535')
end
if not is_keep_ms(ARGV[4]) then
    return redis.error_reply('INVALID life of the last packet id is neither empty nor an integer of 1 or more')
end

local fields = redis.call(
    'HMGET', session_key, 'owner', 'import', 'epoch', 'mirror', 'saved_last_packet_id', 'until_ms'
)
local refused_reply = refusal(fields, epoch)
if refused_reply then
    return refused_reply
end
local current = redis.call('GET', last_packet_id_key) or ''
if current ~= expected then
    return { 'conflict', current }
end
local in_use = {}
for position, score in ipairs(redis.call('ZMSCORE', messages_key, unpack(KEYS, FIRST_PAYLOAD))) do
    -- The packet id of a message that has expired is free.
    if score and redis.call('EXISTS', KEYS[FIRST_PAYLOAD - 1 + position]) == 1 then
        in_use[#in_use + 1] = position - 1
    end
end
if #in_use > 0 then
    return { 'conflict', current, unpack(in_use) }
end
local note_move = move_of_last_packet_id(messages_key, session_key, current, last_packet_id)
if fields[5] == current and fields[6] and fields[6] ~= 'never' then
    -- The expiry of our save shows that no other program has set the key since.
    set_last_packet_id(last_packet_id_key, last_packet_id, ARGV[4])
elseif ARGV[4] == '' or fields[4] then
    -- A cleanup may have given the key an expiry, which is removed when it is used, as by a broker's save.
    redis.call('SET', last_packet_id_key, last_packet_id)
else
    set_last_packet_id(last_packet_id_key, last_packet_id, ARGV[4])
end
note_move()
if fields[4] then
    note_change(session_key, '-')
end
return { 'reserved' }
