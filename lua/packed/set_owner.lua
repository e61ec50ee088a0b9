#!lua flags=allow-oom
--[[
Purpose
    Record which store owns a session that moves while its client is connected. A repeated call changes nothing.
KEYS
    [1]  session         the session
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
    O(1); about 10 us.
]]
--- @include "includes/integers"
--- @include "includes/outbox"
--- @include "includes/packed_state"
--- @include "includes/packed_write"
--- @include "includes/time"

local session_key = KEYS[1]
if #KEYS ~= 1 then
    return redis.error_reply('INVALID 1 key is expected')
end
--- @include "includes/owner_told"

local fields = redis.call('HMGET', session_key, 'owner', 'epoch', 'mirror', 'import', 's')
--- @include "includes/owner_known"
local state = unpacked(fields[5])

-- Fields that are no messages are counted in the state.
local others = redis.call('HSET', session_key, 'owner', owner, 'epoch', ARGV[1])
local forgotten = {}
-- From now on no import may undo the session. An incomplete import stays incomplete, and blocks all writers.
local is_complete = not fields[4] or fields[4] == 'done'
if is_complete then
    others = others + redis.call('HSET', session_key, 'import', 'done')
    forgotten = { 'plan', 'references', 'imported_last_packet_id', 'imported_state', 'used' }
end
local is_mirrored = (owner == 'redis' and mirror == '1') or (owner == 'fenced' and was_mirrored)
if is_mirrored then
    others = others + redis.call('HSET', session_key, 'mirror', ARGV[1])
    if not was_mirrored then
        others = others + redis.call('HSET', session_key, 'outbox', '', 'outbox_ms', '', 'outbox_version', '0')
    end
    -- Changes in Redis before this were not recorded. A session that the other store hands over is equal in both.
    if not was_mirrored and fields[1] ~= 'postgres' and state then
        note_change(session_key, '*')
    end
elseif owner ~= 'fenced' then
    for _, name in ipairs({ 'mirror', 'outbox', 'outbox_ms', 'outbox_version' }) do
        forgotten[#forgotten + 1] = name
    end
end
if #forgotten > 0 then
    others = others - redis.call('HDEL', session_key, unpack(forgotten))
end
local keeps_expiry = owner == 'redis' and not is_mirrored
if state then
    state.others = state.others + others
    -- Saves need not look at the owner while it is Redis and nobody else has to know what changes.
    state.guarded = keeps_expiry and is_complete and 0 or 1
    if owner == 'postgres' then
        -- What the other store has saved may live longer than what is known here.
        state.until_ms = -1
    end
    redis.call('HSET', session_key, 's', packed(state))
end
if not keeps_expiry then
    redis.call('PERSIST', session_key)
elseif state and state.until_ms > now_ms() then
    -- A key that should have expired is left to the cleanup of idle sessions.
    redis.call('PEXPIREAT', session_key, string.format('%d', state.until_ms))
end
return 'set'
