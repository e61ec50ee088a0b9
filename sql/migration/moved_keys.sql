-- List the given keys that no message of the source has, for clients that the source knows.
-- params: client_ids, serial_numbers; of equal length
-- rows: (client_id, serial_number)
-- index: device_publish_msg_pkey, device_session_ctx_pkey
SELECT
    wanted.client_id,
    wanted.serial_number
FROM unnest(%(client_ids)b::text[], %(serial_numbers)b::bigint[]) AS wanted (client_id, serial_number)
WHERE
    NOT EXISTS (
        SELECT 1 AS one
        FROM device_publish_msg AS msg
        WHERE msg.client_id = wanted.client_id AND msg.serial_number = wanted.serial_number
    )
    AND (
        EXISTS (
            SELECT 1 AS one
            FROM device_publish_msg AS msg
            WHERE msg.client_id = wanted.client_id
        )
        OR EXISTS (
            SELECT 1 AS one
            FROM device_session_ctx AS ctx
            WHERE ctx.client_id = wanted.client_id
        )
    )
