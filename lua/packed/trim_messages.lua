#!lua flags=allow-oom
--[[
Purpose
    Remove messages of a session that exceeds its limit, in the given order, until it does not.
KEYS
    [1]  session  the session
ARGV
    [1]  epoch    of the session as the caller knows it; empty: the caller does not know owners
    [2]  limit    messages that may stay
    [3+] serials  of messages, in the order in which they may be removed
Returns
    {trimmed, messages}  messages removed; messages of the session now
Errors
    INVALID    an argument is not an integer, or there are too many serials
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(M) for M serials; about 5 us per call and 0.5 us each. At most 500.
]]
--- @include "includes/integers"
--- @include "includes/packed_state"
--- @include "includes/packed_write"

local SERIALS_PER_CALL = 500
local FIRST_SERIAL = 3

local session_key, epoch, limit = KEYS[1], ARGV[1], integer(ARGV[2])
local count = #ARGV - FIRST_SERIAL + 1
if #KEYS ~= 1 or count < 0 or count > SERIALS_PER_CALL or not limit or limit < 0 then
    return redis.error_reply(
        'INVALID 1 key, an epoch, a limit and at most ' .. SERIALS_PER_CALL .. ' serials are expected'
    )
end
for index = FIRST_SERIAL, #ARGV do
    if not integer(ARGV[index]) then
        return redis.error_reply('INVALID serial of message ' .. index - FIRST_SERIAL + 1 .. ' is not an integer')
    end
end
--- @include "includes/packed_guarded"
if not state then
    return { 0, 0 }
end
local messages, trimmed = redis.call('HLEN', session_key) - state.others, 0
local place = FIRST_SERIAL
local going = {}
-- Of so many places no more messages can go than may.
while messages - trimmed > limit and place <= #ARGV do
    local to = math.min(#ARGV, place + messages - trimmed - limit - 1)
    for index = place, owned and owned[4] and to or 0 do
        going[#going + 1] = ARGV[index]
    end
    trimmed = trimmed + redis.call('HDEL', session_key, unpack(ARGV, place, to))
    place = to + 1
end
if trimmed > 0 then
    state.trimmed, state.bound = state.trimmed + trimmed, messages - trimmed
    redis.call('HSET', session_key, 's', packed(state))
    if owned and owned[4] then
        --- @include "includes/outbox"
        --- @include "includes/serial_runs"
        note_change(session_key, serial_runs(going))
    end
end
return { trimmed, messages - trimmed }
