#!lua flags=allow-oom
--[[
Purpose
    Record that the client has sent PUBREC: the record becomes PUBREL and loses its body; its place and expiry stay.
KEYS
    [1]  messages        sorted set of references
    [2]  session         fields of the session
    [3]  payload         key of the message
ARGV
    [1]  epoch           of the session as the caller knows it; empty: the caller does not know owners
    [2]  serial          serial of the message; empty: any
Returns
    "released"    the record is PUBREL now
    "already"     it was before; nothing was written
    "missing"     no message, or one of another serial; nothing was written
    "unreadable"  the key holds no message of type PUBLISH or PUBREL; nothing was written
Errors
    INVALID    the serial is neither an integer nor empty
    NOT_OWNER  the other store owns the session or is about to, or its import is not complete
    STALE      the session has another epoch than the caller
Cost
    O(log N + B) for N references and a record of B bytes; about 8 us, and 1 us per 2 KB.
]]
--- @include "includes/integers"
-- Returns where the value of a member of an object is, if it is a string without escaped quotes; else nil. A quoted
-- name cannot occur inside a JSON string, whose quotes are escaped, and a value is not followed by a colon.
local function string_member(json, name)
    local quoted = '"' .. name .. '"'
    local from, to = string.find(json, quoted, 1, true)
    while from do
        local _, opening = string.find(json, '^%s*:%s*"', to + 1)
        if opening then
            local closing = string.find(json, '"', opening + 1, true)
            return closing and opening + 1, closing and closing - 1
        end
        from, to = string.find(json, quoted, to + 1, true)
    end
    return nil
end

local messages_key, session_key, payload_key = KEYS[1], KEYS[2], KEYS[3]
local epoch, serial = ARGV[1], ARGV[2]
if #KEYS ~= 3 or #ARGV ~= 2 or (serial ~= '' and not integer(serial)) then
    return redis.error_reply('INVALID 3 keys, an epoch and a serial, an integer or empty, are expected')
end

--- @include "includes/guarded"
local score = redis.call('ZSCORE', messages_key, payload_key)
if not score or (serial ~= '' and tonumber(serial) ~= tonumber(score)) then
    return 'missing'
end
-- MGET reads a key of another type as nothing.
local json = redis.call('MGET', payload_key)[1]
if not json then
    return redis.call('EXISTS', payload_key) == 1 and 'unreadable' or 'missing'
end
local from, to = string_member(json, 'packetType')
local packet_type = from and string.sub(json, from, to)
if packet_type == 'PUBREL' then
    return 'already'
end
if packet_type ~= 'PUBLISH' then
    return 'unreadable'
end
json = string.sub(json, 1, from - 1) .. 'PUBREL' .. string.sub(json, to + 1)
from, to = string_member(json, 'payload')
if from then
    json = string.sub(json, 1, from - 1) .. string.sub(json, to + 1)
end
redis.call('SET', payload_key, json, 'KEEPTTL')
if fields[4] then
    --- @include "includes/outbox"
    --- @include "includes/serial_runs"
    note_change(session_key, serial_runs({ score }))
end
return 'released'
