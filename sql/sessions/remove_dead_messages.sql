-- Remove messages of locked sessions whose life is over, at most 10,000 of each; what others are removing is left to
-- them.
-- params: client_ids, default_ttl_s
-- rows: (client_id, messages removed)
-- index: device_publish_msg_pkey
WITH doomed AS (
    SELECT
        msg.client_id,
        msg.serial_number
    FROM unnest(%(client_ids)s::varchar[]) AS wanted (client_id)
    CROSS JOIN LATERAL (
        SELECT
            own.client_id,
            own.serial_number
        FROM device_publish_msg AS own
        WHERE
            own.client_id = wanted.client_id
            AND queuekeeper.message_expires_at_ms(own.time, own.msg_expiry_interval, %(default_ttl_s)s)
            <= extract(EPOCH FROM statement_timestamp()) * 1000
        ORDER BY own.serial_number
        LIMIT 10000
        FOR UPDATE SKIP LOCKED
    ) AS msg
),

removed AS (
    DELETE FROM device_publish_msg AS msg
    USING doomed
    WHERE (msg.client_id, msg.serial_number) = (doomed.client_id, doomed.serial_number)
    RETURNING msg.client_id
)

SELECT
    client_id,
    count(*) AS messages
FROM removed
GROUP BY client_id
