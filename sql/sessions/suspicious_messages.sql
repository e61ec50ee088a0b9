-- Read the messages of a session that may break a rule, with sizes instead of payloads.
-- params: client_id, content_type_most, correlation_data_most, packet_id_least, packet_id_most, packet_most,
-- packet_type_words, payload_format_indicator_least, payload_format_indicator_most, qos_least, qos_most,
-- response_topic_most, serial_number_least, serial_number_most, time_least, time_most, topic_most
-- rows: (serial, packet id, type, topic, payload bytes, qos, time, payload format indicator, content type, response
-- topic, correlation data bytes, user properties)
-- index: device_publish_msg_pkey
SELECT
    serial_number,
    -- include: judged_columns
    user_properties
FROM device_publish_msg
WHERE
    client_id = %(client_id)s
    AND (
        serial_number NOT BETWEEN %(serial_number_least)s AND %(serial_number_most)s
        OR packet_id IS NULL
        OR packet_id NOT BETWEEN %(packet_id_least)s AND %(packet_id_most)s
        OR packet_type IS NULL
        OR packet_type != all(%(packet_type_words)b::text[])
        OR topic = ''
        OR octet_length(topic) > %(topic_most)s
        OR qos NOT BETWEEN %(qos_least)s AND %(qos_most)s
        OR time NOT BETWEEN %(time_least)s AND %(time_most)s
        OR payload_format_indicator NOT BETWEEN %(payload_format_indicator_least)s
        AND %(payload_format_indicator_most)s
        OR octet_length(content_type) > %(content_type_most)s
        OR octet_length(response_topic) > %(response_topic_most)s
        OR octet_length(correlation_data) > %(correlation_data_most)s
        OR user_properties IS NOT NULL
        OR octet_length(payload) + octet_length(topic) + coalesce(octet_length(content_type), 0)
        + coalesce(octet_length(response_topic), 0) + coalesce(octet_length(correlation_data), 0) > %(packet_most)s
    )
ORDER BY serial_number
