#!lua
--[[
Purpose
    Reserve packet ids for messages that are stored elsewhere.
KEYS
    [1]  session  the session
ARGV
    [1]  epoch    of the session as the caller knows it; empty: the caller does not know owners
    [2]  count    packet ids to reserve
    [3]  keep_ms  shortest time for which the session is kept from now on; empty: for ever
    [4]  given    empty, or after a conflict given as "last:ids:next_ids:free": state that the caller has seen, packet
                  ids given out after this call, and up to which number all following ones are free
Returns
    {"reserved", first_packet_id}  this one and those that follow it, or those that the caller has found
    {"conflict"}  a packet id may be in use, or the state is not the one that the caller has seen; nothing was written
Errors
    INVALID    an argument breaks the rules above
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(1); about 6 us. At most 1,000 packet ids.
]]
--- @include "includes/integers"
--- @include "includes/packed_expiry"
--- @include "includes/packed_new"
--- @include "includes/packed_state"
--- @include "includes/packed_write"

local PACKET_IDS = 65535

local session_key, epoch, count, keep_ms = KEYS[1], ARGV[1], integer(ARGV[2]), ARGV[3]
if #KEYS ~= 1 or #ARGV ~= 4 or not count or count < 1 or count > 1000 or (keep_ms ~= '' and not integer(keep_ms)) then
    return redis.error_reply('INVALID 1 key, an epoch, a count of 1 to 1000, a life and what was given are expected')
end
--- @include "includes/packed_guarded"
local fields = redis.call('HLEN', session_key)
state = state or new_state(fields)
if fields <= state.others then
    state.head, state.free = math.max(state.last + 1, 0), state.ids + PACKET_IDS
end
local first_packet_id = state.ids % PACKET_IDS + 1
if ARGV[4] ~= '' then
    local last, ids, next_ids, free = string.match(ARGV[4], '^(%-?%d+):(%d+):(%d+):(%d+)$')
    if not last then
        return redis.error_reply('INVALID given is not last:ids:next_ids:free')
    end
    if last + 0 ~= state.last or ids + 0 ~= state.ids then
        return { 'conflict' }
    end
    state.ids, state.free = next_ids + 0, free + 0
elseif state.ids + count > state.free then
    return { 'conflict' }
else
    state.ids = state.ids + count
end
local moved = keep(state, keep_ms)
--- @include "includes/packed_keep"
return { 'reserved', first_packet_id }
