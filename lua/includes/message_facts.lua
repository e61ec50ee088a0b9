--- @include "includes/expiry_interval"
--- @include "includes/integers"
-- Returns the facts of a record, or nothing if it cannot be read. The record is decoded but never encoded again, and
-- the rules are at most as strict as those of the stores: a record that they can read is read here, too.
local function whole_number(value, lowest, highest)
    return type(value) == 'number' and value % 1 == 0 and value >= lowest and value <= highest
end

local function message_facts(json)
    local decoded, fields = pcall(cjson.decode, json)
    if not decoded or type(fields) ~= 'table' then
        return nil
    end
    local topic, payload, interval = fields.topicName or fields.topic, fields.payload, fields.msgExpiryInterval
    if interval == cjson.null then
        interval = nil
    end
    if payload == nil and fields.packetType == 'PUBREL' then
        payload = ''
    end
    if type(topic) ~= 'string' or type(payload) ~= 'string' or type(fields.clientId) ~= 'string'
        or (fields.packetType ~= 'PUBLISH' and fields.packetType ~= 'PUBREL')
        or not whole_number(fields.packetId, 1, 65535) or not whole_number(fields.qos, 0, 2)
        or not whole_number(fields.time, 0, 9007199254740992)
        or (interval ~= nil and not whole_number(interval, -2147483648, 4294967295))
    then
        return nil
    end
    return {
        client_id = fields.clientId,
        packet_id = fields.packetId,
        packet_type = fields.packetType,
        time_ms = fields.time,
        interval_s = interval and expiry_interval_s(interval),
        topic = topic,
        payload = payload,
    }
end
