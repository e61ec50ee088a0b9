-- Remove the messages of a session that another store does not hold.
-- params: client_id, kept, serials; kept: serials that it holds; serials: of the messages to look at; null for all
-- rows: one: (messages removed)
-- index: device_publish_msg_pkey
WITH removed AS (
    DELETE FROM device_publish_msg AS msg
    WHERE
        msg.client_id = %(client_id)s
        AND (%(serials)b::bigint[] IS NULL OR msg.serial_number = any(%(serials)b::bigint[]))
        AND NOT EXISTS (
            SELECT 1 AS one
            FROM unnest(%(kept)b::bigint[]) AS kept (serial_number)
            WHERE kept.serial_number = msg.serial_number
        )
    RETURNING msg.serial_number
)

SELECT count(*) AS messages
FROM removed
