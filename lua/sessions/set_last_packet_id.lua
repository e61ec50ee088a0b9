#!lua
--[[
Purpose
    Set the last packet id, if it still is the expected one.
KEYS
    [1]  messages        sorted set of references
    [2]  last_packet_id  last packet id
    [3]  session         fields of the session
ARGV
    [1]  epoch           of the session as the caller knows it; empty: the caller does not know owners
    [2]  expected        last packet id that the caller knows; empty: the key is absent
    [3]  last_packet_id  0 to 65535
    [4]  keep_ms         shortest time for which the key is kept from now on; empty: for ever, if it is new, as in a
                         session with a mirror
Returns
    1  it was set
    0  the last packet id is another one; nothing was written
Errors
    INVALID    an argument breaks the rules above
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(log N) for N references; about 6 us.
]]
--- @include "includes/integers"
--- @include "includes/last_packet_id"
--- @include "includes/move_last_packet_id"
--- @include "includes/outbox"
--- @include "includes/set_last_packet_id"

local messages_key, last_packet_id_key, session_key = KEYS[1], KEYS[2], KEYS[3]
local epoch, expected, last_packet_id = ARGV[1], ARGV[2], ARGV[3]
if #KEYS ~= 3 or #ARGV ~= 4 then
    return redis.error_reply('INVALID 3 keys and 4 arguments are expected')
end
if not is_last_packet_id(last_packet_id) or last_packet_id == '' then
    return redis.error_reply('INVALID last packet id is not an integer from 0 to 65535')
end
if not is_keep_ms(ARGV[4]) then
    return redis.error_reply('INVALID life of the last packet id is neither empty nor an integer of 1 or more')
end

--- @include "includes/guarded"
if (redis.call('GET', last_packet_id_key) or '') ~= expected then
    return 0
end
local note_move = move_of_last_packet_id(messages_key, session_key, expected, last_packet_id)
set_last_packet_id(last_packet_id_key, last_packet_id, fields[4] and '' or ARGV[4])
note_move()
if fields[4] then
    note_change(session_key, '-')
end
return 1
