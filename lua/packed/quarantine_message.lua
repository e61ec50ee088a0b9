#!lua flags=allow-oom
--[[
Purpose
    Put an unreadable record aside: it is kept in a field of its own until the session ends, or 100 newer ones are so.
KEYS
    [1]  session      the session
ARGV
    [1]  epoch        of the session as the caller knows it; empty: the caller does not know owners
    [2]  serial       of the record
    [3]  quarantined  field that takes the record
    [4]  digest       SHA-1 of the record as the caller has read it
Returns
    1  it was put aside
    0  there is none, or another one; nothing was written
Errors
    INVALID    the serial is not an integer, or an argument is missing
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(B) for a record of B bytes; about 8 us, and 1 us per 200 bytes.
]]
--- @include "includes/integers"
--- @include "includes/packed_state"
--- @include "includes/packed_write"

local KEPT = 100

local session_key, epoch = KEYS[1], ARGV[1]
if #KEYS ~= 1 or #ARGV ~= 4 or not integer(ARGV[2]) or not string.find(ARGV[3], '^%S+$') then
    return redis.error_reply('INVALID 1 key, an epoch, a serial, a field and a digest are expected')
end
--- @include "includes/packed_guarded"
local record = redis.call('HGET', session_key, ARGV[2])
if not state or not record or redis.sha1hex(record) ~= ARGV[4] then
    return 0
end
-- Fields of the records that were put aside, the oldest first.
local aside = redis.call('HGET', session_key, 'aside')
local fields, oldest = aside and aside .. ' ' .. ARGV[3] or ARGV[3], nil
local _, count = string.gsub(fields, '%S+', '')
if count > KEPT then
    oldest, fields = string.match(fields, '^(%S+) (.*)$')
end
state.quarantined = state.quarantined + 1
state.others = state.others + 1 - redis.call('HEXISTS', session_key, ARGV[3]) + (aside and 0 or 1)
    - (oldest and redis.call('HEXISTS', session_key, oldest) or 0)
redis.call('HSET', session_key, ARGV[3], record, 'aside', fields, 's', packed(state))
redis.call('HDEL', session_key, ARGV[2], oldest or ARGV[2])
if owned and owned[4] then
    --- @include "includes/outbox"
    note_change(session_key, ARGV[2])
end
return 1
