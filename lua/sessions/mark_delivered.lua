#!lua flags=allow-oom
--[[
Purpose
    Record that messages up to a serial have been sent to the client. The record goes back only if another program has
    emptied the set and added messages with lower serials.
KEYS
    [1]  messages        sorted set of references
    [2]  last_packet_id  last packet id
    [3]  session         fields of the session
ARGV
    [1]  epoch           of the session as the caller knows it; empty: the caller does not know owners
    [2]  serial          highest serial that was sent; a serial beyond the session's last one counts as the last one
    [3]  keep_ms         expiry of a hash that this call creates for a set without expiry; empty: none
Returns
    1  the record has moved
    0  it was there or further, or the session has neither messages nor fields
Errors
    INVALID    an argument is not an integer of 0 or more
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(log N) for N references; about 9 us, and 1 us per message below the serial that another program has added since.
]]
--- @include "includes/integers"

local messages_key, last_packet_id_key, session_key = KEYS[1], KEYS[2], KEYS[3]
local epoch, serial, keep_ms = ARGV[1], integer(ARGV[2]), integer(ARGV[3])
if #KEYS ~= 3 or #ARGV ~= 3 then
    return redis.error_reply('INVALID 3 keys and 3 arguments are expected')
end
if not serial or serial < 0 then
    return redis.error_reply('INVALID serial is not an integer of 0 or more')
end
if ARGV[3] ~= '' and (not keep_ms or keep_ms < 1) then
    return redis.error_reply('INVALID life of the hash is neither empty nor an integer of 1 or more')
end

local fields = redis.call(
    'HMGET', session_key, 'owner', 'import', 'epoch', 'mirror', 'delivered_serial', 'delivered_at',
    'saved_last_packet_id', 'last_serial'
)
--- @include "includes/guarded_fields"
--- @include "includes/delivered"
local before, last_serial = fields[5] and tonumber(fields[5]), fields[8] and tonumber(fields[8])
local last_packet_id = redis.call('GET', last_packet_id_key) or ''
local delivered = delivered_up_to(messages_key, last_packet_id, { fields[5], fields[6], fields[7], fields[8] })
if delivered >= serial then
    return 0
end
local messages_until = redis.call('PEXPIRETIME', messages_key)
local greatest = redis.call('ZRANGE', messages_key, '0', '0', 'REV', 'WITHSCORES')[2]
-- A hash that holds only the owner of a session does not count as a session.
if messages_until == -2 and fields[1] and not before and not last_serial then
    return 0
end
local known = before or redis.call('EXISTS', session_key) == 1
if not known and messages_until == -2 then
    return 0
end
-- A serial beyond the last one cannot have been sent.
if last_serial or greatest then
    serial = math.floor(math.min(serial, math.max(last_serial or 0, tonumber(greatest or '0'))))
end
if delivered >= serial then
    return 0
end
redis.call('HSET', session_key, 'delivered_serial', string.format('%d', serial))
-- Our later saves get serials after all that were sent, whichever program wrote them.
if last_serial and serial > last_serial then
    redis.call('HSET', session_key, 'last_serial', string.format('%d', serial))
end
if last_serial and fields[7] == last_packet_id then
    redis.call('HDEL', session_key, 'delivered_at')
else
    greatest = greatest or string.format('%d', serial)
    redis.call('HSET', session_key, 'delivered_at', last_packet_id .. ':' .. greatest)
end
--- @include "includes/kept_for_ever"
if messages_until == -1 then
    redis.call('PEXPIREAT', messages_key, KEPT_MS)
end
-- The hash must not outlive a session that another program wrote.
if not known and messages_until ~= -1 and messages_until < tonumber(KEPT_MS) then
    redis.call('PEXPIREAT', session_key, string.format('%d', messages_until))
elseif not known and keep_ms then
    redis.call('PEXPIRE', session_key, ARGV[3])
end
if fields[4] then
    --- @include "includes/outbox"
    note_change(session_key, '-')
end
return 1
