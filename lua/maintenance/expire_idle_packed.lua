#!lua flags=allow-oom
--[[
Purpose
    Give a packed session that was imported without messages, or whose messages are over, an expiry, if nobody has used
    it. The next save sets another one.
KEYS
    [1]  session   the session
ARGV
    [1]  keep_ms   shortest time for which the session is kept from now on
    [2]  said_ms   0 to return only what would be done; or the last number of such a reply, to do it
    [3]  all_dead  1: count as if the messages, whose lives are over, were gone; for dry runs
Returns
    {"expires", expires_at_ms, as_of_ms}  instant that is set; the instant for which the reply holds
    {"kept"}       a message waits, or the session has an expiry; nothing was written
    {"held"}       the session must last for ever, is imported or moved, belongs to the other store or has a mirror
                   there
    {"foreign"}    it has no state
Errors
    INVALID  1 key and 3 arguments as above are expected
Cost
    O(1); about 8 us.
]]
--- @include "includes/as_of"
--- @include "includes/integers"
--- @include "includes/ownership"
--- @include "includes/packed_import"
--- @include "includes/packed_state"
--- @include "includes/packed_write"

local session_key, keep_ms, said_ms, all_dead = KEYS[1], integer(ARGV[1]), integer(ARGV[2]), ARGV[3]
if #KEYS ~= 1 or #ARGV ~= 3 or not keep_ms or keep_ms < 1 or not said_ms or said_ms < 0
    or (all_dead ~= '0' and all_dead ~= '1')
then
    return redis.error_reply('INVALID 1 key, a life of 1 ms or more, an instant of 0 or more, and 0 or 1 are expected')
end
local text = redis.call('HGET', session_key, 's')
local fields = redis.call('HLEN', session_key)
local state = text and #text == struct.size(STATE) and unpacked(text)
if not state then
    if fields == 0 then
        return { 'kept' }
    end
    return { 'foreign' }
end
if (all_dead == '0' and fields > state.others) or redis.call('PEXPIRETIME', session_key) ~= -1 then
    return { 'kept' }
end
local imported = import_of(session_key)
if imported[9] or not takes_messages(imported[1], imported[3]) then
    return { 'held' }
end
-- A session without an end that somebody uses may have to last for ever; only an import does not say for how long.
if not imported[4] or used_since(imported, state, fields) then
    return { 'held' }
end
local now = as_of(said_ms)
state.until_ms = now + keep_ms
if said_ms > 0 then
    redis.call('HSET', session_key, 's', packed(state))
    redis.call('PEXPIREAT', session_key, string.format('%d', state.until_ms))
end
return { 'expires', state.until_ms, now }
