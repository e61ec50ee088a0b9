#!lua
--[[
Purpose
    Write messages of a session whose keys had another hash tag, with their serials and expiries. Messages of an earlier
    call stay as they are, so that a move can be repeated from its start.
KEYS
    [1]  messages        sorted set of references
    [2]  last_packet_id  last packet id
    [3]  session         fields of the session
    [4+] payloads        one key per message; none for a session without messages
ARGV
    [1]  last_packet_id  its value under the other tag, which is written if there is none; empty: none
    [2+] messages        a triple per message: serial, instant at which it expires in ms or -1 for never, record
Returns
    {written, present, expired}  messages stored by this call, stored by an earlier one, and not stored because they
                                 have expired
Errors
    INVALID           an argument breaks the rules above, or there are too many messages
    MOVED_ON          the session exists and was not made by a move
    PACKET_ID_IN_USE  another message has one of the payload keys; nothing was written
Cost
    O(M log N) for M messages and N references; about 6 us per message. At most 256 messages.
]]
--- @include "includes/integers"
--- @include "includes/last_packet_id"
--- @include "includes/time"

local MESSAGES_PER_CALL = 256
local FIRST_PAYLOAD = 4
local FIRST_TRIPLE = 2

local messages_key, last_packet_id_key, session_key = KEYS[1], KEYS[2], KEYS[3]
local last_packet_id = ARGV[1]
local count = #KEYS - FIRST_PAYLOAD + 1
if count < 0 or #ARGV ~= FIRST_TRIPLE - 1 + 3 * count then
    return redis.error_reply('INVALID 3 keys and a key per message, 1 argument and 3 per message are expected')
end
--- @include "includes/message_limit"
if not is_last_packet_id(last_packet_id) then
    return redis.error_reply('INVALID last packet id is not an integer from 0 to 65535')
end
for index = 1, count do
    local at = FIRST_TRIPLE + 3 * (index - 1)
    local serial, expires_at_ms = integer(ARGV[at]), integer(ARGV[at + 1])
    if not serial or not expires_at_ms or expires_at_ms < -1 then
        return redis.error_reply('INVALID serial or expiry of message ' .. index .. ' is not an integer')
    end
end
if redis.call('HEXISTS', session_key, 'rekeyed') == 0
    and redis.call('EXISTS', messages_key, last_packet_id_key, session_key) > 0
then
    return redis.error_reply('MOVED_ON the session exists and was not moved here')
end

local now = now_ms()
local going, present, expired = {}, 0, 0
for index = 1, count do
    local key = KEYS[FIRST_PAYLOAD - 1 + index]
    local at = FIRST_TRIPLE + 3 * (index - 1)
    local expires_at_ms = integer(ARGV[at + 1])
    local score = redis.call('ZSCORE', messages_key, key)
    if score and tonumber(score) == integer(ARGV[at]) then
        present = present + 1
    elseif score or redis.call('EXISTS', key) == 1 then
        return redis.error_reply('PACKET_ID_IN_USE another message has the payload key of message ' .. index)
    elseif expires_at_ms ~= -1 and expires_at_ms <= now then
        expired = expired + 1
    else
        going[#going + 1] = index
    end
end

-- The mark comes first: a full server refuses HSET, and without the mark a repeated call would not know its own work.
redis.call('HSET', session_key, 'rekeyed', '1')
for _, index in ipairs(going) do
    local key = KEYS[FIRST_PAYLOAD - 1 + index]
    local at = FIRST_TRIPLE + 3 * (index - 1)
    if ARGV[at + 1] == '-1' then
        redis.call('SET', key, ARGV[at + 2])
    else
        redis.call('SET', key, ARGV[at + 2], 'PXAT', ARGV[at + 1])
    end
    redis.call('ZADD', messages_key, ARGV[at], key)
end
if last_packet_id ~= '' then
    redis.call('SET', last_packet_id_key, last_packet_id, 'NX')
end
return { #going, present, expired }
