-- Read a page of a session's messages, the newest first.
-- params: client_id, before_serial, limit; before_serial: null to begin with the newest
-- rows: (now_ms, columns of a message)
-- index: device_publish_msg_pkey
SELECT
    floor(extract(EPOCH FROM statement_timestamp()) * 1000)::bigint AS now_ms,
    msg.serial_number,
    msg.packet_id,
    msg.packet_type,
    msg.topic,
    msg.payload,
    msg.qos,
    msg.time,
    msg.retain,
    msg.msg_expiry_interval,
    msg.payload_format_indicator,
    msg.content_type,
    msg.response_topic,
    msg.correlation_data,
    msg.user_properties
FROM device_publish_msg AS msg
WHERE
    msg.client_id = %(client_id)s
    AND (%(before_serial)s::bigint IS NULL OR msg.serial_number < %(before_serial)s::bigint)
ORDER BY msg.serial_number DESC
LIMIT %(limit)s
