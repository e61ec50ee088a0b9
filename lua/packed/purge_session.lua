#!lua flags=allow-oom
--[[
Purpose
    Remove a session with everything that belongs to it.
KEYS
    [1]  session  the session
ARGV
    [1]  epoch    of the session as the caller knows it; empty: the caller does not know owners
Returns
    messages  how many were removed
Errors
    NOT_OWNER  PostgreSQL owns the session or is about to
    STALE      the session has another epoch than the caller
Cost
    O(1); about 10 us, as the server frees the memory in the background.
]]
--- @include "includes/guard"
--- @include "includes/packed_state"

local session_key = KEYS[1]
local owned = redis.call('HMGET', session_key, 'owner', 'import', 'epoch')
-- An incomplete import may be purged.
owned[2] = false
local refused_reply = refusal(owned, ARGV[1])
if refused_reply then
    return refused_reply
end
local state = unpacked(redis.call('HGET', session_key, 's'))
local messages = state and redis.call('HLEN', session_key) - state.others or 0
redis.call('UNLINK', session_key)
return messages
