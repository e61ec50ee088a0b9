#!lua flags=allow-oom
--[[
Purpose
    Remove messages that the client has acknowledged. A repeated call removes nothing.
KEYS
    [1]  session      the session
ARGV
    [1]  epoch        of the session as the caller knows it; empty: the caller does not know owners
    [2+] packet_ids   "packet_id:serial" per acknowledgement; without a serial, any message with the packet id
Returns
    {removed, *unknown}  messages removed; positions, from 0, of packet ids without a serial that may be those of older
                      messages: the caller looks through these and calls again with their serials
Errors
    INVALID    an acknowledgement is not written so, or there are none or too many
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(M) for M acknowledgements; about 4 us per call and 0.5 us each. At most 1,000.
]]
--- @include "includes/packed_places"
--- @include "includes/packed_state"

local ACKS_PER_CALL = 1000
local FIRST_PACKET_ID = 2

local session_key, epoch = KEYS[1], ARGV[1]
if #KEYS ~= 1 or #ARGV < FIRST_PACKET_ID or #ARGV > ACKS_PER_CALL + 1 then
    return redis.error_reply('INVALID 1 key, an epoch and 1 to ' .. ACKS_PER_CALL .. ' acknowledgements are expected')
end
local wanted = {}
for index = FIRST_PACKET_ID, #ARGV do
    local packet_id, serial = string.match(ARGV[index], '^(%d+):(%-?%d*)$')
    if not packet_id or serial == '-' then
        return redis.error_reply(
            'INVALID acknowledgement ' .. index - FIRST_PACKET_ID + 1 .. ' is not packet_id:serial'
        )
    end
    wanted[index - FIRST_PACKET_ID + 1] = { packet_id + 0, serial ~= '' and serial + 0 or nil }
end
--- @include "includes/packed_guarded"
if not state then
    return { 0 }
end
local place = places(session_key, state)
local going, unknown = {}, {}
for position, each in ipairs(wanted) do
    local serial, elsewhere = place(each[1], each[2])
    if serial then
        going[#going + 1] = string.format('%d', serial)
    elseif elsewhere then
        unknown[#unknown + 1] = position - 1
    end
end
local removed = #going > 0 and redis.call('HDEL', session_key, unpack(going)) or 0
if owned and owned[4] and removed > 0 then
    --- @include "includes/outbox"
    --- @include "includes/serial_runs"
    note_change(session_key, serial_runs(going))
end
return { removed, unpack(unknown) }
