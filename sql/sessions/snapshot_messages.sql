-- Read a page of a session's messages, the newest first.
-- params: client_id, before_serial, serials, limit, default_ttl_s; before_serial: null to begin with the newest;
-- serials: null for all
-- rows: (now_ms, whether a newer live message has the same packet id, columns of a message)
-- index: device_publish_msg_pkey, idx_device_publish_msg_packet_id
SELECT
    floor(extract(EPOCH FROM statement_timestamp()) * 1000)::bigint AS now_ms,
    (
        SELECT count(*) > 0
        FROM device_publish_msg AS newer
        WHERE
            newer.client_id = %(client_id)s
            AND newer.packet_id = msg.packet_id
            AND newer.serial_number > msg.serial_number
            AND queuekeeper.message_expires_at_ms(newer.time, newer.msg_expiry_interval, %(default_ttl_s)s)
            > extract(EPOCH FROM statement_timestamp()) * 1000
    ) AS superseded,
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
    AND (%(serials)s::bigint[] IS NULL OR msg.serial_number = any(%(serials)s::bigint[]))
ORDER BY msg.serial_number DESC
LIMIT %(limit)s
