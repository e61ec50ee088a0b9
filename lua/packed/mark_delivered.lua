#!lua flags=allow-oom
--[[
Purpose
    Record that messages up to a serial have been sent to the client. The record never goes back.
KEYS
    [1]  session  the session
ARGV
    [1]  epoch    of the session as the caller knows it; empty: the caller does not know owners
    [2]  serial   highest serial that was sent; a serial beyond the session's last one counts as the last one
Returns
    1  the record has moved
    0  it was there or further, or the session has never stored a message
Errors
    INVALID    the serial is not an integer of 0 or more
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(1); about 4 us.
]]
--- @include "includes/integers"
--- @include "includes/packed_state"
--- @include "includes/packed_write"

local session_key, epoch, serial = KEYS[1], ARGV[1], integer(ARGV[2])
if #KEYS ~= 1 or #ARGV ~= 2 or not serial or serial < 0 then
    return redis.error_reply('INVALID 1 key, an epoch and a serial, an integer of 0 or more, are expected')
end
--- @include "includes/packed_guarded"
if not state or math.min(serial, state.last) <= state.delivered then
    return 0
end
state.delivered = math.min(serial, state.last)
redis.call('HSET', session_key, 's', packed(state))
if owned and owned[4] then
    --- @include "includes/outbox"
    note_change(session_key, '-')
end
return 1
