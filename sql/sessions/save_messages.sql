-- Store messages as the vendor's broker does.
-- params: client_ids, serials, topics, times_ms, packet_ids, packet_types, qos, payloads, user_properties, retain,
-- expiry_intervals, payload_format_indicators, content_types, response_topics, correlation_data
-- rows: none
-- index: device_publish_msg_pkey
INSERT INTO device_publish_msg (
    client_id, serial_number, topic, time, packet_id, packet_type, qos, payload, user_properties, retain,
    msg_expiry_interval, payload_format_indicator, content_type, response_topic, correlation_data
)
SELECT
    message.client_id,
    -- include: whole_message
    message.correlation_data
FROM unnest(
    %(client_ids)b::varchar[], %(serials)b::bigint[], %(topics)b::varchar[], %(times_ms)b::bigint[],
    %(packet_ids)b::int[], %(packet_types)b::varchar[], %(qos)b::int[], %(payloads)b::bytea[],
    %(user_properties)b::varchar[], %(retain)b::boolean[], %(expiry_intervals)b::int[],
    %(payload_format_indicators)b::int[], %(content_types)b::varchar[], %(response_topics)b::varchar[],
    %(correlation_data)b::bytea[]
) AS message (
    client_id, serial_number, topic, time, packet_id, packet_type, qos, payload, user_properties, retain,
    msg_expiry_interval, payload_format_indicator, content_type, response_topic, correlation_data
)
