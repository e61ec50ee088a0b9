-- List the largest messages, the largest one first, with the size of each payload instead of the payload.
-- params: limit, offset
-- rows: (client_id, serial_number, topic, time, packet_id, packet_type, qos, payload_bytes, retain,
-- msg_expiry_interval, payload_format_indicator, content_type, response_topic, correlation_data, user_properties)
-- index: none; reads the table whole, and no payload
SELECT
    -- include: message_place
    octet_length(payload) AS payload_bytes,
    -- include: message_properties
    user_properties
FROM device_publish_msg
ORDER BY
    octet_length(payload) + coalesce(octet_length(correlation_data), 0)
    + coalesce(octet_length(user_properties), 0) DESC NULLS LAST,
    client_id ASC,
    serial_number ASC
LIMIT %(limit)s OFFSET %(offset)s
