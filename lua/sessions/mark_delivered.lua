#!lua flags=allow-oom
--[[
Purpose
    Note that messages up to a serial have been sent to the client. The note never goes back.
KEYS
    [1]  messages        sorted set of references
    [2]  session         fields of the session
ARGV
    [1]  epoch           of the session as the caller knows it; empty: the caller does not know owners
    [2]  serial          highest serial that was sent; one that was never given out counts as the one given out last
    [3]  keep_ms         life of a hash that this call makes for a set without expiry; empty: for ever
Returns
    1  the note has moved
    0  it was there or further, or the session has neither messages nor fields
Errors
    INVALID    an argument is not an integer of 0 or more
    NOT_OWNER  PostgreSQL owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(1); about 5 us.
]]
--- @include "includes/integers"

local messages_key, session_key = KEYS[1], KEYS[2]
local epoch, serial, keep_ms = ARGV[1], integer(ARGV[2]), integer(ARGV[3])
if #KEYS ~= 2 or #ARGV ~= 3 then
    return redis.error_reply('INVALID 2 keys and 3 arguments are expected')
end
if not serial or serial < 0 then
    return redis.error_reply('INVALID serial is not an integer of 0 or more')
end
if ARGV[3] ~= '' and (not keep_ms or keep_ms < 1) then
    return redis.error_reply('INVALID life of the hash is neither empty nor an integer of 1 or more')
end

local fields = redis.call('HMGET', session_key, 'owner', 'import', 'epoch', 'mirror', 'delivered_serial')
if fields[1] or fields[2] or epoch ~= '' then
    --- @include "includes/guard"
    local refused_reply = refusal(fields, epoch)
    if refused_reply then
        return refused_reply
    end
end
local delivered = fields[5]
if delivered and tonumber(delivered) >= serial then
    return 0
end
local last_serial = redis.call('HGET', session_key, 'last_serial')
local newest = redis.call('ZRANGE', messages_key, '0', '0', 'REV', 'WITHSCORES')[2]
-- A hash that only says who owns the session is no session.
if fields[1] and not delivered and not last_serial and not newest then
    return 0
end
local known = delivered or redis.call('EXISTS', session_key) == 1
local messages_until = not known and redis.call('PEXPIRETIME', messages_key)
if messages_until == -2 then
    return 0
end
-- What was never given out cannot have been sent.
if last_serial or newest then
    serial = math.floor(math.min(serial, math.max(tonumber(last_serial or '0'), tonumber(newest or '0'))))
end
if delivered and tonumber(delivered) >= serial then
    return 0
end
redis.call('HSET', session_key, 'delivered_serial', string.format('%d', serial))
-- The hash may not outlive a session that another program wrote.
if messages_until and messages_until ~= -1 then
    redis.call('PEXPIREAT', session_key, string.format('%d', messages_until))
elseif messages_until and keep_ms then
    redis.call('PEXPIRE', session_key, ARGV[3])
end
if fields[4] then
    --- @include "includes/outbox"
    note_change(session_key, '-')
end
return 1
