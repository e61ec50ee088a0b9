#!lua flags=allow-oom
--[[
Purpose
    Record which store owns a session that moves while its client is connected. A repeated call changes nothing.
KEYS
    [1]  messages        sorted set of references
    [2]  last_packet_id  last packet id
    [3]  session         fields of the session
ARGV
    [1]  epoch           of this ownership; a session with a greater one is left alone
    [2]  owner           redis, postgres, or fenced: nobody may write, because the session moves away
    [3]  mirror          1: changes from now on are recorded for the other store; 0: they are not. Used only with redis
Returns
    "set"        the session has this owner now
    "unchanged"  it had this owner before; a mirror that was ended under the same epoch stays ended
Errors
    INVALID  an argument breaks the rules above
    STALE    the session has a greater epoch, or another owner under the same one
Cost
    O(1); about 8 us.
]]
--- @include "includes/integers"
--- @include "includes/outbox"
--- @include "includes/time"

local messages_key, last_packet_id_key, session_key = KEYS[1], KEYS[2], KEYS[3]
if #KEYS ~= 3 then
    return redis.error_reply('INVALID 3 keys are expected')
end
--- @include "includes/owner_told"

local fields = redis.call(
    'HMGET', session_key, 'owner', 'epoch', 'mirror', 'until_ms', 'import', 'last_serial', 'saved_last_packet_id',
    'delivered_serial', 'delivered_at'
)
--- @include "includes/owner_known"
local has_been_used = fields[6] or redis.call('EXISTS', last_packet_id_key) == 1

redis.call('HSET', session_key, 'owner', owner, 'epoch', ARGV[1])
-- From now on no import may undo the session. An incomplete import stays incomplete, and blocks all writers.
if not fields[5] or fields[5] == 'done' then
    redis.call('HSET', session_key, 'import', 'done')
    redis.call('HDEL', session_key, 'plan', 'references', 'imported_last_packet_id', 'imported_until_ms', 'used')
end
-- Without the record of the last save, the next save checks the owner. The record of what has been sent stays.
if fields[8] and not fields[9] and fields[7] and fields[6] then
    redis.call('HSET', session_key, 'delivered_at', fields[7] .. ':' .. fields[6])
end
redis.call('HDEL', session_key, 'saved_last_packet_id')
if fields[8] and fields[1] == 'postgres' and owner == 'redis' then
    --- @include "includes/kept_for_ever"
    -- Only the copy has written here; from now on the record of what has been sent needs its proof.
    local greatest = redis.call('ZRANGE', messages_key, '0', '0', 'REV', 'WITHSCORES')[2] or fields[8]
    redis.call('HSET', session_key, 'delivered_at', (redis.call('GET', last_packet_id_key) or '') .. ':' .. greatest)
    if redis.call('PEXPIRETIME', messages_key) == -1 then
        redis.call('PEXPIREAT', messages_key, KEPT_MS)
    end
end
if owner == 'postgres' then
    redis.call('HDEL', session_key, 'mirror', 'outbox', 'outbox_version', 'outbox_ms', 'until_ms', 'delivered_at')
elseif owner == 'redis' and mirror == '0' then
    redis.call('HDEL', session_key, 'mirror', 'outbox', 'outbox_version', 'outbox_ms')
elseif owner == 'redis' or was_mirrored then
    redis.call('HSET', session_key, 'mirror', ARGV[1])
end
-- Changes in Redis before this were not recorded. A session that the other store hands over is equal in both.
if owner == 'redis' and mirror == '1' and not was_mirrored and fields[1] ~= 'postgres' and has_been_used then
    note_change(session_key, '*')
end
if owner == 'redis' and mirror == '0' then
    -- Keys that should have expired are left to the cleanup of idle sessions.
    local until_ms = integer(fields[4] or '')
    if until_ms and until_ms > now_ms() then
        redis.call('PEXPIREAT', session_key, fields[4])
        redis.call('PEXPIREAT', last_packet_id_key, fields[4])
    end
else
    redis.call('PERSIST', session_key)
    redis.call('PERSIST', last_packet_id_key)
end
return 'set'
