#!lua flags=allow-oom
--[[
Purpose
    Set the expiry of messages, if they are unchanged since the caller read them.
KEYS
    [1]  messages        sorted set of references
    [2]  session         fields of the session
    [3+] payloads        keys of messages
ARGV
    [1]  may_lengthen    1 to undo an earlier call; 0: an expiry is only made earlier
    [2+] lives           a triple per message: its serial, its present expiry and its new expiry, in ms; -1 for never
Returns
    {*done}  one number per message: 1 when its expiry was set, 0 when it is another message now, expires at another
                 instant, or would expire at once
Errors
    INVALID  an argument breaks the rules above, or there are too many payload keys
Cost
    O(M log N) for M payload keys and N references; about 3 us per key. At most 500 keys.
]]
--- @include "includes/integers"
--- @include "includes/earliest_expiry"
--- @include "includes/mirrored"
--- @include "includes/time"

local PAYLOAD_KEYS_PER_CALL = 500
local FIRST_PAYLOAD = 3
local FIRST_TRIPLE = 2

local messages_key, session_key, may_lengthen = KEYS[1], KEYS[2], ARGV[1]
local count = #KEYS - FIRST_PAYLOAD + 1
if count < 1 or #ARGV ~= FIRST_TRIPLE - 1 + 3 * count then
    return redis.error_reply('INVALID 2 keys and a key per message, 1 argument and 3 per message are expected')
end
--- @include "includes/payload_limit"
if may_lengthen ~= '0' and may_lengthen ~= '1' then
    return redis.error_reply('INVALID the leave to lengthen is neither 0 nor 1')
end
for index = 1, count do
    local at = FIRST_TRIPLE + 3 * (index - 1)
    local before, after = integer(ARGV[at + 1]), integer(ARGV[at + 2])
    if not integer(ARGV[at]) or not before or not after or before < -1 or after < -1 then
        return redis.error_reply('INVALID serial or expiry of message ' .. index .. ' is not an integer')
    end
    if may_lengthen == '0' and (after == -1 or (before ~= -1 and after > before)) then
        return redis.error_reply('INVALID the life of message ' .. index .. ' would be made longer')
    end
end

local now = now_ms()
local done, changed = {}, false
for index = 1, count do
    local key = KEYS[FIRST_PAYLOAD - 1 + index]
    local at = FIRST_TRIPLE + 3 * (index - 1)
    local score = redis.call('ZSCORE', messages_key, key)
    local after = integer(ARGV[at + 2])
    done[index] = 0
    if score and tonumber(score) == integer(ARGV[at]) and (after == -1 or after > now)
        and redis.call('PEXPIRETIME', key) == integer(ARGV[at + 1])
    then
        if after == -1 then
            redis.call('PERSIST', key)
        else
            redis.call('PEXPIREAT', key, ARGV[at + 2])
            note_expiry(session_key, after)
        end
        done[index] = 1
        changed = true
    end
end
if changed then
    note_all(session_key)
end
return done
