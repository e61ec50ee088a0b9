#!lua flags=no-writes
--[[
Purpose
    Judge records in the server, so that no record leaves it, as many from the first on as fit.
KEYS
    [1+] payloads        keys of messages of one session
ARGV
    [1]  client_id       client that the messages should name
    [2]  max_bytes       bytes of JSON after which to stop; the first record is judged whatever its size
Returns
    {*verdicts(verdict, pexpiretime, packet_id, time_ms, interval_s, digest)}
                              six values per key that was judged, in order. The verdict is missing, wrong_type,
                              unreadable, other_client, publish or pubrel; the instant in ms, -1 without expiry, -2 for
                              a key that does not exist. The rest is empty unless the record can be read; the interval
                              also for a message without one. Equal digests mean equal topic, time and payload
Errors
    INVALID  max_bytes is not an integer of 1 or more, or there are no keys or too many
Cost
    O(M) for M keys; about 15 us per message of 1 KB. At most 500 keys.
]]
--- @include "includes/message_digest"
--- @include "includes/message_facts"

local PAYLOAD_KEYS_PER_CALL = 500
local FIRST_PAYLOAD = 1

local max_bytes = integer(ARGV[2])
local count = #KEYS - FIRST_PAYLOAD + 1
if count < 1 or count > PAYLOAD_KEYS_PER_CALL or #ARGV ~= 2 then
    return redis.error_reply('INVALID 1 to ' .. PAYLOAD_KEYS_PER_CALL .. ' keys and 2 arguments are expected')
end
if not max_bytes or max_bytes < 1 then
    return redis.error_reply('INVALID max_bytes is not an integer of 1 or more')
end

local function verdict_of(facts)
    if not facts then
        return 'unreadable'
    end
    if facts.client_id ~= ARGV[1] then
        return 'other_client'
    end
    return facts.packet_type == 'PUBREL' and 'pubrel' or 'publish'
end

local reply, bytes = {}, 0
for index = FIRST_PAYLOAD, #KEYS do
    local key = KEYS[index]
    local at = #reply
    local expires_at_ms = redis.call('PEXPIRETIME', key)
    -- MGET reads a key of another type as nothing.
    local json = redis.call('MGET', key)[1]
    local facts
    if json then
        bytes = bytes + #json
        if bytes > max_bytes and at > 0 then
            return reply
        end
        facts = message_facts(json)
        reply[at + 1] = verdict_of(facts)
    else
        reply[at + 1] = expires_at_ms == -2 and 'missing' or 'wrong_type'
    end
    reply[at + 2] = expires_at_ms
    reply[at + 3] = facts and facts.packet_id or ''
    reply[at + 4] = facts and string.format('%d', facts.time_ms) or ''
    reply[at + 5] = facts and facts.interval_s and string.format('%d', facts.interval_s) or ''
    reply[at + 6] = facts and message_digest(facts) or ''
end
return reply
