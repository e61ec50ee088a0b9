#!lua flags=no-writes
--[[
Purpose
    Judge the contents of messages in the server: the JSON is decoded here and never encoded again, and only numbers are
    returned.
KEYS
    [1+] payloads        keys of messages of one session
ARGV
    [1]  client_id       client that the messages must name
    [2]  default_ttl_s   lifetime of a message without expiry interval
    [3+] packet_ids      of each key, in order
Returns
    {*records(faults, fingerprint)}
                         two numbers per key, in order: a sum of 1 unreadable, 2 of another client or packet id, 4
                         quality of service outside 0 to 2, 8 quality of service 0, 16 neither PUBLISH nor PUBREL, or
                         PUBREL below quality of service 2, 32 expires over a minute later than it should; 48 bits of a
                         hash over topic, time and payload, 0 when unreadable. 0 and 0 for a key without a string
Errors
    INVALID  an argument breaks the rules above
Cost
    O(B) for B bytes; about 5 us per message of 300 B. At most 500 keys; the caller bounds the bytes.
]]
--- @include "includes/expiry_interval"
--- @include "includes/integers"
--- @include "includes/message_digest"

local FIRST_PAYLOAD = 1
local MESSAGES_PER_CALL = 500
local FIRST_PACKET_ID = 3
-- The lifetime counts from the message's time, which a broker sets shortly before it stores the message.
local GRACE_MS = 60000

local client_id, default_ttl_s = ARGV[1], integer(ARGV[2])
if #KEYS < FIRST_PAYLOAD or #KEYS > MESSAGES_PER_CALL or #ARGV ~= FIRST_PACKET_ID - 1 + #KEYS then
    return redis.error_reply(
        'INVALID 1 to ' .. MESSAGES_PER_CALL .. ' keys, 2 arguments and a packet id per key are expected'
    )
end
if not default_ttl_s or default_ttl_s < 1 then
    return redis.error_reply('INVALID default life is not an integer of 1 or more')
end

local function whole(value)
    return type(value) == 'number' and value % 1 == 0
end

-- This is less strict than includes/message_facts: a quality of service, packet type or id for which a store would not
-- read the record is a separate fault here.
local function is_message(value)
    if type(value) ~= 'table' then
        return false
    end
    local interval_s = value.msgExpiryInterval
    local payload = value.payload
    return type(value.topicName or value.topic) == 'string'
        and whole(value.time)
        and value.time >= 0
        and whole(value.qos)
        and whole(value.packetId)
        and type(value.packetType) == 'string'
        and (type(payload) == 'string' or (payload == nil and value.packetType == 'PUBREL'))
        and (interval_s == nil or interval_s == cjson.null or whole(interval_s))
end

local function lives_too_long(message, expires_at_ms)
    if expires_at_ms < 0 then
        return false
    end
    local interval_s = message.msgExpiryInterval
    interval_s = whole(interval_s) and expiry_interval_s(interval_s) or default_ttl_s
    return expires_at_ms > message.time + 1000 * interval_s + GRACE_MS
end

local function judge(key, packet_id)
    local json = redis.pcall('GET', key)
    if type(json) == 'table' then
        if not string.find(json.err, 'WRONGTYPE', 1, true) then
            return nil, json
        end
        return 0, 0
    end
    if not json then
        return 0, 0
    end
    local decoded, message = pcall(cjson.decode, json)
    if not decoded or not is_message(message) then
        return 1, 0
    end
    local faults = 0
    if message.clientId ~= client_id or message.packetId ~= tonumber(packet_id) then
        faults = faults + 2
    end
    if message.qos < 0 or message.qos > 2 then
        faults = faults + 4
    elseif message.qos == 0 then
        faults = faults + 8
    end
    local kind = message.packetType
    if kind ~= 'PUBLISH' and (kind ~= 'PUBREL' or message.qos ~= 2) then
        faults = faults + 16
    end
    if lives_too_long(message, redis.call('PEXPIRETIME', key)) then
        faults = faults + 32
    end
    local digest = message_digest({
        topic = message.topicName or message.topic, time_ms = message.time, payload = message.payload or '',
    })
    return faults, tonumber(string.sub(digest, 1, 12), 16)
end

local reply = {}
for index = FIRST_PAYLOAD, #KEYS do
    local faults, fingerprint = judge(KEYS[index], ARGV[FIRST_PACKET_ID - 1 + index])
    if not faults then
        return fingerprint
    end
    reply[2 * index - 1] = faults
    reply[2 * index] = fingerprint
end
return reply
