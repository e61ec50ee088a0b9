#!lua flags=allow-oom
--[[
Purpose
    Remove those of the given messages that have expired, and record what the caller knows after it has looked at all.
    An import that was not used before is not used by this.
KEYS
    [1]  session   the session
ARGV
    [1]  epoch     of the session as the caller knows it; empty: the caller does not know owners
    [2]  earliest  earliest expiry of the messages that stay, for a caller that has looked at all of the session's up to
                   seen; empty: it has not
    [3]  seen      last serial of the session when the caller looked
    [4+] serials   of messages
Returns
    {removed, messages, next_ms, bytes}  messages removed; messages of the session now; earliest expiry of the given
                   messages that stay, 0 for none; bytes of the records removed
Errors
    INVALID    an argument is not an integer, or there are too many serials
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(M) for M serials; about 5 us per call and 1 us each. At most 500.
]]
--- @include "includes/integers"
--- @include "includes/packed_import"
--- @include "includes/packed_record"
--- @include "includes/packed_state"
--- @include "includes/packed_write"
--- @include "includes/time"

local SERIALS_PER_CALL = 500
local FIRST_SERIAL = 4

local session_key, epoch, earliest, seen = KEYS[1], ARGV[1], integer(ARGV[2]), integer(ARGV[3])
local count = #ARGV - FIRST_SERIAL + 1
if #KEYS ~= 1 or count < 0 or count > SERIALS_PER_CALL or not seen or (ARGV[2] ~= '' and not earliest) then
    return redis.error_reply('INVALID 1 key, 3 arguments and at most ' .. SERIALS_PER_CALL .. ' serials are expected')
end
--- @include "includes/packed_guarded"
if not state then
    return { 0, 0, 0, 0 }
end
local going, now, next_ms, bytes = {}, now_ms(), 0, 0
for index, record in ipairs(count > 0 and redis.call('HMGET', session_key, unpack(ARGV, FIRST_SERIAL)) or {}) do
    if record and #record >= HEAD_BYTES then
        local _, expires_at_ms = struct.unpack('>Hd', record)
        if expires_at_ms <= now then
            going[#going + 1] = ARGV[FIRST_SERIAL + index - 1]
            bytes = bytes + #record
        elseif next_ms == 0 or expires_at_ms < next_ms then
            next_ms = expires_at_ms
        end
    end
end
local removed = #going
local known = earliest and state.last == seen
local fields = redis.call('HLEN', session_key)
local messages = fields - state.others - removed
if removed > 0 or known then
    local values = { 's', '' }
    if removed > 0 then
        local imported = import_of(session_key)
        if imported[4] and not used_since(imported, state, fields) then
            values[3], values[4] = 'references', string.format('%d', messages)
        end
    end
    state.expired, state.bound = state.expired + removed, messages
    state.earliest = known and earliest or state.earliest
    values[2] = packed(state)
    redis.call('HSET', session_key, unpack(values))
end
if removed > 0 then
    redis.call('HDEL', session_key, unpack(going))
end
return { removed, messages, next_ms, bytes }
