#!lua
--[[
Purpose
    Bring a message back that a remedy has put aside, to the place that it had.
KEYS
    [1]  session        the session
ARGV
    [1]  epoch          of the session as the caller knows it; empty: the caller does not know owners
    [2]  quarantined    field that holds the record
    [3]  serial         of the message
    [4]  packet_id      of the message, -1 for a record that is none
    [5]  expires_at_ms  of the message, -1 for none
Returns
    "restored"  it is back
    "missing"   the field holds no such record
    "occupied"  there is a message at its serial
Errors
    INVALID    an argument breaks the rules above
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(B) for a record of B bytes; about 10 us.
]]
--- @include "includes/integers"
--- @include "includes/packed_put"
--- @include "includes/packed_record"
--- @include "includes/packed_same"
--- @include "includes/packed_state"
--- @include "includes/packed_write"

local session_key, epoch, quarantined, serial = KEYS[1], ARGV[1], ARGV[2], integer(ARGV[3])
local packet_id, expires_at_ms = integer(ARGV[4]), integer(ARGV[5])
if #KEYS ~= 1 or #ARGV ~= 5 or not string.find(quarantined, '^%D%S*$') or not serial or serial < 0 or not packet_id
    or not expires_at_ms
then
    return redis.error_reply('INVALID 1 key, an epoch, a field and 3 integers are expected')
end
--- @include "includes/packed_guarded"
local record = redis.call('HGET', session_key, quarantined)
if not state or not is_same(record, packet_id, expires_at_ms) then
    return 'missing'
end
if redis.call('HEXISTS', session_key, ARGV[3]) == 1 then
    return 'occupied'
end
local messages = redis.call('HLEN', session_key) - state.others
state.others, state.bound, state.quarantined = state.others - 1, messages + 1, math.max(0, state.quarantined - 1)
put(state, serial, packet_id, expires_at_ms, #record)
redis.call('HSET', session_key, ARGV[3], record, 's', packed(state))
redis.call('HDEL', session_key, quarantined)
if owned and owned[4] then
    --- @include "includes/outbox"
    note_change(session_key, '*')
end
return 'restored'
