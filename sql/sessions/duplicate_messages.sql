-- List live messages of a session whose packet id a newer live message has too: only the newer one can be acknowledged.
-- params: client_id, default_ttl_s
-- rows: (serial)
-- index: device_publish_msg_pkey, idx_device_publish_msg_packet_id
SELECT msg.serial_number
FROM device_publish_msg AS msg
WHERE
    msg.client_id = %(client_id)s
    AND queuekeeper.message_expires_at_ms(msg.time, msg.msg_expiry_interval, %(default_ttl_s)s)
    > extract(EPOCH FROM statement_timestamp()) * 1000
    AND EXISTS (
        SELECT 1 AS one
        FROM device_publish_msg AS newer
        WHERE
            newer.client_id = %(client_id)s
            AND newer.packet_id = msg.packet_id
            AND newer.serial_number > msg.serial_number
            AND queuekeeper.message_expires_at_ms(newer.time, newer.msg_expiry_interval, %(default_ttl_s)s)
            > extract(EPOCH FROM statement_timestamp()) * 1000
    )
