-- Remove messages of a locked session whose life is over and whose packet ids are given out again; what others are
-- removing is left to them.
-- params: client_id, packet_ids, default_ttl_s
-- rows: one: (messages removed)
-- index: device_publish_msg_pkey, idx_device_publish_msg_packet_id
WITH doomed AS (
    SELECT
        client_id,
        serial_number
    FROM device_publish_msg
    WHERE
        client_id = %(client_id)s
        AND packet_id = any(%(packet_ids)s::int[])
        AND queuekeeper.message_expires_at_ms(time, msg_expiry_interval, %(default_ttl_s)s)
        <= extract(EPOCH FROM statement_timestamp()) * 1000
    ORDER BY serial_number
    FOR UPDATE SKIP LOCKED
),

removed AS (
    DELETE FROM device_publish_msg AS msg
    USING doomed
    WHERE (msg.client_id, msg.serial_number) = (doomed.client_id, doomed.serial_number)
    RETURNING msg.serial_number
)

SELECT count(*) AS messages
FROM removed
