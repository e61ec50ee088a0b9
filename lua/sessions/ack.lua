#!lua flags=allow-oom
--[[
Purpose
    Remove messages that the client has acknowledged. A repeated call removes nothing.
KEYS
    [1]  messages        sorted set of references
    [2]  session         fields of the session
    [3+] payloads        keys of the messages
ARGV
    [1]  epoch           of the session as the caller knows it; empty: the caller does not know owners
    [2+] serials         serial of each message, which is removed only if it has this one; empty: any
Returns
    {*removed}  1 or 0 per payload key, in order
Errors
    INVALID    a serial is neither an integer nor empty, or there are no payload keys or too many
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(M log N) for M payload keys and N references; about 12 us per call and 3 us per key. At most 1,000 keys.
]]
--- @include "includes/integers"

local PAYLOAD_KEYS_PER_CALL = 1000
local FIRST_PAYLOAD = 3
local FIRST_SERIAL = 2

local messages_key, session_key, epoch = KEYS[1], KEYS[2], ARGV[1]
local count = #KEYS - FIRST_PAYLOAD + 1
if count < 1 or count > PAYLOAD_KEYS_PER_CALL or #ARGV ~= FIRST_SERIAL - 1 + count then
    return redis.error_reply(
        'INVALID 2 keys, 1 to ' .. PAYLOAD_KEYS_PER_CALL .. ' payload keys, an epoch and as many serials are expected'
    )
end
for index = FIRST_SERIAL, #ARGV do
    if ARGV[index] ~= '' and not integer(ARGV[index]) then
        local number = index - FIRST_SERIAL + 1
        return redis.error_reply('INVALID serial of message ' .. number .. ' is neither an integer nor empty')
    end
end

--- @include "includes/guarded"
local going, serials, removed, seen = {}, {}, {}, {}
for position, score in ipairs(redis.call('ZMSCORE', messages_key, unpack(KEYS, FIRST_PAYLOAD))) do
    local key, serial = KEYS[FIRST_PAYLOAD - 1 + position], ARGV[FIRST_SERIAL - 1 + position]
    removed[position] = 0
    if score and not seen[key] and (serial == '' or tonumber(serial) == tonumber(score)) then
        seen[key] = true
        removed[position] = 1
        going[#going + 1] = key
        serials[#serials + 1] = score
    end
end
if #going > 0 then
    if fields[4] then
        --- @include "includes/outbox"
        --- @include "includes/serial_runs"
        note_change(session_key, serial_runs(serials))
    end
    redis.call('ZREM', messages_key, unpack(going))
    redis.call('UNLINK', unpack(going))
end
return removed
