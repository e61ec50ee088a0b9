#!lua flags=allow-oom
--[[
Purpose
    Remove messages of a session that exceeds its limit, in the given order, until it does not.
KEYS
    [1]  messages        sorted set of references
    [2]  session         fields of the session
    [3+] payloads        keys of messages, in the order in which they may be removed
ARGV
    [1]  epoch           of the session as the caller knows it; empty: the caller does not know owners
    [2]  limit           references that may stay
    [3+] serials         serial of each message; a message that has another serial now is skipped
Returns
    {trimmed, dead, references}  messages removed; references removed whose message had expired; members of the set now
Errors
    INVALID    an argument is not an integer, or there are too many payload keys
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(M log N) for M payload keys and N references; about 3 us per removed key. At most 1,000 keys.
]]
--- @include "includes/integers"
--- @include "includes/outbox"
--- @include "includes/serial_runs"
--- @include "includes/session_counters"

local PAYLOAD_KEYS_PER_CALL = 1000
local FIRST_PAYLOAD = 3
local FIRST_SERIAL = 3

local messages_key, session_key, epoch = KEYS[1], KEYS[2], ARGV[1]
local limit = integer(ARGV[2])
local count = #KEYS - FIRST_PAYLOAD + 1
if count < 0 or #ARGV ~= FIRST_SERIAL - 1 + count then
    return redis.error_reply('INVALID 2 keys, a key per message, epoch, limit and a serial per message are expected')
end
--- @include "includes/payload_limit"
if not limit or limit < 0 then
    return redis.error_reply('INVALID limit is not an integer of 0 or more')
end
for index = FIRST_SERIAL, #ARGV do
    if not integer(ARGV[index]) then
        return redis.error_reply('INVALID serial of message ' .. index - FIRST_SERIAL + 1 .. ' is not an integer')
    end
end

--- @include "includes/guarded"
local references = redis.call('ZCARD', messages_key)
if references <= limit or count == 0 then
    return { 0, 0, references }
end
local going, serials, seen = {}, {}, {}
for position, score in ipairs(redis.call('ZMSCORE', messages_key, unpack(KEYS, FIRST_PAYLOAD))) do
    local key = KEYS[FIRST_PAYLOAD - 1 + position]
    if #going == references - limit then
        break
    end
    if score and tonumber(score) == tonumber(ARGV[FIRST_SERIAL - 1 + position]) and not seen[key] then
        seen[key] = true
        going[#going + 1] = key
        serials[#serials + 1] = score
    end
end
if #going == 0 then
    return { 0, 0, references }
end
if fields[4] then
    note_change(session_key, serial_runs(serials))
end
local trimmed = redis.call('UNLINK', unpack(going))
redis.call('ZREM', messages_key, unpack(going))
count_in_session(session_key, 'trimmed', trimmed)
count_in_session(session_key, 'expired', #going - trimmed)
return { trimmed, #going - trimmed, references - #going }
