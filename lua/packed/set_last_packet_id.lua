#!lua
--[[
Purpose
    Set the last packet id, if it still is the expected one.
KEYS
    [1]  session    the session
ARGV
    [1]  epoch      of the session as the caller knows it; empty: the caller does not know owners
    [2]  expected   last packet id that the caller knows; 0: none was given out
    [3]  packet_id  1 to 65535
    [4]  keep_ms    shortest time for which the session is kept from now on; empty: for ever
Returns
    1  it was set
    0  the last packet id is another one; nothing was written
Errors
    INVALID    an argument breaks the rules above
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(1); about 6 us.
]]
--- @include "includes/integers"
--- @include "includes/packed_expiry"
--- @include "includes/packed_ids"
--- @include "includes/packed_new"
--- @include "includes/packed_state"
--- @include "includes/packed_write"

local PACKET_IDS = 65535

local session_key, epoch, expected, packet_id, keep_ms = KEYS[1], ARGV[1], integer(ARGV[2]), integer(ARGV[3]), ARGV[4]
if #KEYS ~= 1 or #ARGV ~= 4 or not expected or not packet_id or packet_id < 1 or packet_id > PACKET_IDS
    or (keep_ms ~= '' and not integer(keep_ms))
then
    return redis.error_reply('INVALID 1 key, an epoch, two packet ids and a life are expected')
end
--- @include "includes/packed_guarded"
local fields = redis.call('HLEN', session_key)
state = state or new_state(fields)
local current = state.ids == 0 and 0 or (state.ids - 1) % PACKET_IDS + 1
if current ~= expected then
    return 0
end
state.ids = ids_up_to(state.ids, packet_id)
if fields <= state.others then
    state.head, state.free = math.max(state.last + 1, 0), state.ids + PACKET_IDS
end
local moved = keep(state, keep_ms)
--- @include "includes/packed_keep"
return 1
