#!lua
--[[
Purpose
    Add one repaired message of the quarantine to a session whose import is complete. A repeated call adds nothing.
KEYS
    [1]  messages        sorted set of references
    [2]  last_packet_id  last packet id
    [3]  session         owner, epoch and state of the import
    [4]  payload         key of the message, named by the packet id that it gets
ARGV
    [1]  plan            id of the plan that imported the session
    [2]  epoch           decimal; a session with a greater one is left alone
    [3]  expected        last packet id that the caller has read; empty: the key is absent
    [4]  last_packet_id  new last packet id, 0 to 65535; empty: it stays
    [5]  serial          score of the message
    [6]  expires_at_ms   instant at which it expires
    [7]  message         JSON
Returns
    {"replayed", key}   the message is stored under key
    {"unchanged", key}  an earlier call has stored the message, under key
    {"expired", key}    the message has expired; nothing was written, and the key is empty
Errors
    INVALID           an argument breaks the rules above
    STALE             a greater epoch owns the session
    MOVED_ON          this plan has not completed the session's import, its last packet id is another, or a later
                      message has the serial
    PACKET_ID_IN_USE  another message of the session has this payload key
Cost
    O(log N) for N references; about 15 us.
]]
--- @include "includes/earliest_expiry"
--- @include "includes/import_state"
--- @include "includes/kept_for_ever"
--- @include "includes/last_packet_id"
--- @include "includes/replayed_before"
--- @include "includes/time"

local messages_key, last_packet_id_key, session_key, payload_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local plan, expected, last_packet_id = ARGV[1], ARGV[3], ARGV[4]
local epoch, serial, expires_at_ms = integer(ARGV[2]), integer(ARGV[5]), integer(ARGV[6])

if #KEYS ~= 4 or #ARGV ~= 7 or plan == '' then
    return redis.error_reply('INVALID 4 keys and 7 arguments are expected')
end
if not epoch or epoch < 0 then
    return redis.error_reply('INVALID epoch is not an integer of 0 or more')
end
if not is_last_packet_id(expected) or not is_last_packet_id(last_packet_id) then
    return redis.error_reply('INVALID last packet id is not an integer from 0 to 65535')
end
if not serial or serial < 0 then
    return redis.error_reply('INVALID serial is not an integer of 0 or more')
end
if not expires_at_ms then
    return redis.error_reply('INVALID expiry is not an integer')
end

local before = replayed_before(session_key, plan, epoch, ARGV[5])
if before then
    return before
end
if redis.call('ZRANGE', messages_key, ARGV[5], ARGV[5], 'BYSCORE', 'LIMIT', 0, 1)[1] then
    return redis.error_reply('MOVED_ON serial ' .. ARGV[5] .. ' has been given to a message that came later')
end
local current = redis.call('GET', last_packet_id_key) or ''
if current ~= expected then
    return redis.error_reply('MOVED_ON the last packet id of the session is not the expected one')
end
if redis.call('ZSCORE', messages_key, payload_key) or redis.call('EXISTS', payload_key) == 1 then
    return redis.error_reply('PACKET_ID_IN_USE another message of the session has this packet id')
end
if expires_at_ms <= now_ms() then
    return { 'expired', '' }
end

local state, was_empty = import_state(session_key), redis.call('EXISTS', messages_key) == 0
local noted_until = tonumber(redis.call('HGET', session_key, 'until_ms') or nil)
redis.call('SET', payload_key, ARGV[7], 'PXAT', ARGV[6])
redis.call('ZADD', messages_key, ARGV[5], payload_key)
if last_packet_id ~= '' then
    -- A session that was used before must still count as used.
    redis.call('SET', last_packet_id_key, last_packet_id, 'KEEPTTL')
    if current == state.last_packet_id then
        redis.call('HSET', session_key, 'imported_last_packet_id', last_packet_id)
        if current == '' then
            redis.call('PEXPIREAT', last_packet_id_key, KEPT_MS)
            redis.call('HSET', session_key, 'imported_until_ms', KEPT_MS)
        end
    end
end
redis.call('HSET', session_key, 'replayed:' .. ARGV[5], payload_key)
redis.call('HINCRBY', session_key, 'references', 1)
note_expiry(session_key, expires_at_ms)
if noted_until then
    -- Our saves give the keys an expiry, which must not be before that of this message. A key without expiry was
    -- written by another program and stays as it is.
    local until_text = string.format('%d', math.max(noted_until, expires_at_ms))
    redis.call('HSET', session_key, 'until_ms', until_text)
    redis.call('PEXPIREAT', session_key, until_text, 'GT')
    redis.call('PEXPIREAT', last_packet_id_key, until_text, 'GT')
    if was_empty then
        redis.call('PEXPIREAT', messages_key, until_text)
    else
        redis.call('PEXPIREAT', messages_key, until_text, 'GT')
    end
end
return { 'replayed', payload_key }
