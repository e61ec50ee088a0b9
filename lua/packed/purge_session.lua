#!lua flags=allow-oom
--[[
Purpose
    Remove a session with everything that belongs to it. Of a session with a mirror, owner, epoch and the record of the
    change stay until the other store has it; so it is removed page by page, and messages saved meanwhile, which have
    greater serials, stay.
KEYS
    [1]  session       the session
ARGV
    [1]  epoch         of the session as the caller knows it; empty: the caller does not know owners
    [2]  up_to_serial  messages with a greater serial stay; used only with a mirror
    [3+] serials       where messages may be, for a session with a mirror
Returns
    {removed, remaining, last_serial}  messages removed by this call and left; the last serial of a session with a
                       mirror, of which only the given messages are removed, else -1
Errors
    INVALID    up_to_serial or a serial is not an integer, or there are too many
    NOT_OWNER  the other store owns the session or is about to
    STALE      the session has another epoch than the caller
Cost
    O(1); about 10 us, as the server frees the memory in the background. With a mirror O(M) for M serials, about 0.5 us
    each. At most 500.
]]
--- @include "includes/guard"
--- @include "includes/integers"
--- @include "includes/packed_state"
--- @include "includes/packed_write"

local SERIALS_PER_CALL = 500
local FIRST_SERIAL = 3

local session_key, up_to_serial = KEYS[1], integer(ARGV[2])
if #KEYS ~= 1 or not up_to_serial or #ARGV - FIRST_SERIAL + 1 > SERIALS_PER_CALL then
    return redis.error_reply(
        'INVALID 1 key, an epoch, the highest serial and at most ' .. SERIALS_PER_CALL .. ' serials are expected'
    )
end
local going = {}
for index = FIRST_SERIAL, #ARGV do
    local serial = integer(ARGV[index])
    if not serial then
        return redis.error_reply('INVALID serial ' .. index - FIRST_SERIAL + 1 .. ' is not an integer')
    end
    if serial <= up_to_serial then
        going[#going + 1] = ARGV[index]
    end
end
local owned = redis.call('HMGET', session_key, 'owner', 'import', 'epoch', 'mirror', 's')
-- An incomplete import may be purged.
owned[2] = false
local refused_reply = refusal(owned, ARGV[1])
if refused_reply then
    return refused_reply
end
local state = unpacked(owned[5])
local messages = state and redis.call('HLEN', session_key) - state.others or 0
if not owned[4] then
    redis.call('UNLINK', session_key)
    return { messages, 0, -1 }
end
if not state then
    return { 0, 0, -1 }
end
local removed = #going > 0 and redis.call('HDEL', session_key, unpack(going)) or 0
if removed > 0 or messages == 0 then
    --- @include "includes/outbox"
    note_change(session_key, '*')
end
messages = messages - removed
if messages > 0 then
    state.bound = messages
    redis.call('HSET', session_key, 's', packed(state))
    return { removed, messages, state.last }
end
local kept = { owner = 1, epoch = 1, mirror = 1, outbox = 1, outbox_version = 1, outbox_ms = 1 }
local others = {}
for _, name in ipairs(redis.call('HKEYS', session_key)) do
    if not kept[name] then
        others[#others + 1] = name
    end
end
--- @include "includes/slices"
each_slice(others, function(...)
    redis.call('HDEL', session_key, ...)
end)
return { removed, 0, state.last }
