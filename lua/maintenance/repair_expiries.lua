#!lua flags=allow-oom
--[[
Purpose
    Give messages without expiry the one of their record: their time plus their own expiry interval, or the default.
KEYS
    [1]  messages        sorted set of references
    [2]  session         fields of the session
    [3+] payloads        keys of messages
ARGV
    [1]  default_ttl_ms  lifetime of a message without an expiry interval
    [2]  grace_ms        time after which a message expires that has expired by its record, so that undo is possible
    [3]  said_ms         0 to return only what would be done; or the instant that begins such a reply, to do it
Returns
    {as_of_ms, *expires_at_ms}  the instant for which the reply holds, then a text per key, from the first on as many as
                          fit: the expiry that is set; empty when the key is gone, has an expiry or has no reference;
                          unreadable when the record cannot be read
Errors
    INVALID  an argument breaks the rules above, or there are no payload keys or too many
Cost
    O(M log N) for M payload keys and N references; about 10 us per message of 1 KB. At most 100 keys, and 1 MB of JSON
    unless the first has more.
]]
--- @include "includes/as_of"
--- @include "includes/earliest_expiry"
--- @include "includes/message_facts"
--- @include "includes/mirrored"

local messages_key, session_key = KEYS[1], KEYS[2]
local FIRST_PAYLOAD = 3
--- @include "includes/mending"

-- If the session's key has another type, this fails before anything is written.
redis.call('HGET', session_key, 'earliest_expiry_ms')
local now = as_of(said_ms)
local soonest = now + grace_ms
local reply, bytes = { string.format('%d', now) }, 0
local is_noted = false
for index = FIRST_PAYLOAD, #KEYS do
    local key = KEYS[index]
    local answer = ''
    if redis.call('PEXPIRETIME', key) == -1 and redis.call('ZSCORE', messages_key, key) then
        -- MGET reads a key of another type as nothing.
        local json = redis.call('MGET', key)[1] or ''
        bytes = bytes + #json
        if bytes > BYTES_PER_CALL and #reply > 1 then
            return reply
        end
        local facts = message_facts(json)
        if facts then
            local life_ms = facts.interval_s and 1000 * facts.interval_s or default_ttl_ms
            local expires_at_ms = math.max(facts.time_ms + life_ms, soonest)
            answer = string.format('%d', expires_at_ms)
            if said_ms > 0 then
                if not is_noted then
                    note_all(session_key)
                    is_noted = true
                end
                redis.call('PEXPIREAT', key, answer)
                note_expiry(session_key, expires_at_ms)
            end
        else
            answer = 'unreadable'
        end
    end
    reply[#reply + 1] = answer
end
return reply
