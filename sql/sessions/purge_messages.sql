-- Remove the oldest messages of a session, as far as a serial.
-- params: client_id, up_to_serial, limit
-- rows: one: (messages removed)
-- index: device_publish_msg_pkey
WITH doomed AS (
    SELECT
        client_id,
        serial_number
    FROM device_publish_msg
    WHERE
        client_id = %(client_id)s
        AND serial_number <= %(up_to_serial)s
    ORDER BY serial_number
    LIMIT %(limit)s
    FOR UPDATE
),

removed AS (
    DELETE FROM device_publish_msg AS msg
    USING doomed
    WHERE (msg.client_id, msg.serial_number) = (doomed.client_id, doomed.serial_number)
    RETURNING msg.serial_number
)

SELECT count(*) AS messages
FROM removed
