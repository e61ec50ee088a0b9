#!lua flags=allow-oom
--[[
Purpose
    Set the expiry of messages, if they are unchanged since the caller read them.
KEYS
    [1]  session       the session
ARGV
    [1]  epoch         of the session as the caller knows it; empty: the caller does not know owners
    [2]  may_lengthen  1 to undo an earlier call; 0: an expiry is only made earlier
    [3+] lives         a triple per message: its serial, its present expiry and its new expiry, in ms
Returns
    {*done}  one number per message: 1 when its expiry was set, 0 when it is gone, expires at another instant, or would
             expire at once
Errors
    INVALID    an argument breaks the rules above, or there are too many messages
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(B) for B bytes of M messages; about 3 us each. At most 200.
]]
--- @include "includes/integers"
--- @include "includes/packed_record"
--- @include "includes/packed_same"
--- @include "includes/packed_state"
--- @include "includes/packed_write"
--- @include "includes/time"

local MESSAGES_PER_CALL = 200
local FIRST_TRIPLE = 3

local session_key, epoch, may_lengthen = KEYS[1], ARGV[1], ARGV[2]
local count = (#ARGV - FIRST_TRIPLE + 1) / 3
if #KEYS ~= 1 or count < 1 or count > MESSAGES_PER_CALL or count ~= math.floor(count)
    or (may_lengthen ~= '0' and may_lengthen ~= '1')
then
    return redis.error_reply('INVALID 1 key, an epoch, 0 or 1, and 3 arguments for 1 to 200 messages are expected')
end
for index = FIRST_TRIPLE, #ARGV, 3 do
    local before, after = integer(ARGV[index + 1]), integer(ARGV[index + 2])
    if not integer(ARGV[index]) or not before or not after or before < 0 or after < 0
        or (may_lengthen == '0' and after > before)
    then
        return redis.error_reply('INVALID a serial or an expiry is no integer of 0 or more, or a life would be longer')
    end
end
--- @include "includes/packed_guarded"
local done, values, now = {}, { 's', '' }, now_ms()
for index = FIRST_TRIPLE, #ARGV, 3 do
    local record = redis.call('HGET', session_key, ARGV[index])
    local after, place = integer(ARGV[index + 2]), (index - FIRST_TRIPLE) / 3 + 1
    done[place] = 0
    if state and record and #record >= HEAD_BYTES and after > now then
        local packet_id = struct.unpack('>H', record)
        if is_same(record, packet_id, integer(ARGV[index + 1])) then
            done[place] = 1
            values[#values + 1] = ARGV[index]
            values[#values + 1] = string.sub(record, 1, 2) .. struct.pack('>d', after) .. string.sub(record, 11)
            state.earliest = state.earliest == 0 and 0 or math.min(state.earliest, after)
        end
    end
end
if #values > 2 then
    values[2] = packed(state)
    redis.call('HSET', session_key, unpack(values))
    if owned and owned[4] then
        --- @include "includes/outbox"
        note_change(session_key, '*')
    end
end
return done
