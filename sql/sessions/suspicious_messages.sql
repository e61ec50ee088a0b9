-- Read those messages of a session that may be none that anybody can deliver, without their payloads.
-- params: client_id
-- rows: (columns of a message, an empty payload among them)
-- index: device_publish_msg_pkey
SELECT
    serial_number,
    packet_id,
    packet_type,
    topic,
    ''::bytea AS payload,
    qos,
    time,
    retain,
    msg_expiry_interval,
    payload_format_indicator,
    content_type,
    response_topic,
    correlation_data,
    user_properties
FROM device_publish_msg
WHERE
    client_id = %(client_id)s
    AND (
        serial_number NOT BETWEEN 0 AND 9007199254740991
        OR packet_id IS NULL
        OR packet_id NOT BETWEEN 1 AND 65535
        OR packet_type IS NULL
        OR packet_type NOT IN ('PUBLISH', 'PUBREL')
        OR qos NOT IN (1, 2)
        OR time NOT BETWEEN 0 AND 9007199254740991
        OR user_properties IS NOT NULL
    )
ORDER BY serial_number
