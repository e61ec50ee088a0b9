#!lua
--[[
Purpose
    Write the state of a session that was worked out from its messages, if nothing has changed meanwhile.
KEYS
    [1]  session   the session
ARGV
    [1]  epoch     of the session as the caller knows it; empty: the caller does not know owners
    [2]  expected  state as the caller has read it; empty for none
    [3]  fields    number of fields then
    [4]  state     the new one
Returns
    1  it was written
    0  the session has changed; nothing was written
Errors
    INVALID    an argument breaks the rules above
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(1); about 6 us.
]]
--- @include "includes/guard"
--- @include "includes/integers"
--- @include "includes/packed_format"

local session_key, epoch, expected, fields = KEYS[1], ARGV[1], ARGV[2], integer(ARGV[3])
if #KEYS ~= 1 or #ARGV ~= 4 or not fields or #ARGV[4] ~= struct.size(STATE) then
    return redis.error_reply('INVALID 1 key, an epoch, two states and a number of fields are expected')
end
-- The state, which may be none, does not say whether to look at the owner.
local owned = redis.call('HMGET', session_key, 'owner', 'import', 'epoch', 'mirror')
local refused_reply = refusal(owned, epoch)
if refused_reply then
    return refused_reply
end
if (redis.call('HGET', session_key, 's') or '') ~= expected or redis.call('HLEN', session_key) ~= fields then
    return 0
end
redis.call('HSET', session_key, 's', ARGV[4])
if owned and owned[4] then
    --- @include "includes/outbox"
    note_change(session_key, '*')
end
return 1
