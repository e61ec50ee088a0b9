-- List live messages of a session whose packet id a newer live message has too: only the newer one can be acknowledged.
-- params: client_id, default_ttl_s
-- rows: (serial)
-- index: device_publish_msg_pkey
SELECT alive.serial_number
FROM (
    SELECT
        msg.serial_number,
        -- One pass and a sort, since a lookup per message takes minutes if the table was not analyzed yet.
        max(msg.serial_number) OVER (PARTITION BY msg.packet_id) AS newest_serial
    FROM device_publish_msg AS msg
    WHERE
        msg.client_id = %(client_id)s
        AND queuekeeper.message_expires_at_ms(msg.time, msg.msg_expiry_interval, %(default_ttl_s)s)
        > extract(EPOCH FROM statement_timestamp()) * 1000
) AS alive
WHERE alive.serial_number < alive.newest_serial
ORDER BY alive.serial_number
