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
    %(client_ids)s::varchar[], %(serials)s::bigint[], %(topics)s::varchar[], %(times_ms)s::bigint[],
    %(packet_ids)s::int[], %(packet_types)s::varchar[], %(qos)s::int[], %(payloads)s::bytea[],
    %(user_properties)s::varchar[], %(retain)s::boolean[], %(expiry_intervals)s::int[],
    %(payload_format_indicators)s::int[], %(content_types)s::varchar[], %(response_topics)s::varchar[],
    %(correlation_data)s::bytea[]
) AS message (
    client_id, serial_number, topic, time, packet_id, packet_type, qos, payload, user_properties, retain,
    msg_expiry_interval, payload_format_indicator, content_type, response_topic, correlation_data
)
