-- Page through sessions that have messages, with or without their own row, and return which have too many.
-- params: after_client_id, sessions, limit, default_ttl_s
-- rows: (client_id, messages that a trim removes: all dead ones, or more where that is not enough; null when there
-- are not too many); the id is null at the end
-- index: device_publish_msg_pkey
WITH RECURSIVE client AS (
    SELECT
        (
            SELECT min(first.client_id)
            FROM device_publish_msg AS first
            WHERE first.client_id > %(after_client_id)s
        ) AS client_id,
        1 AS place
    UNION ALL
    -- One probe per client instead of one row per message.
    SELECT
        (
            SELECT min(next.client_id)
            FROM device_publish_msg AS next
            WHERE next.client_id > client.client_id
        ) AS client_id,
        client.place + 1 AS place
    FROM client
    WHERE
        client.client_id IS NOT NULL
        AND client.place < %(sessions)s
)

SELECT
    client.client_id,
    CASE
        WHEN
            EXISTS (
                SELECT 1 AS one
                FROM device_publish_msg AS msg
                WHERE msg.client_id = client.client_id
                ORDER BY msg.serial_number
                LIMIT 1 OFFSET %(limit)s
            )
            THEN (
                SELECT
                    greatest(
                        count(*) - %(limit)s,
                        count(*) FILTER (
                            WHERE
                            queuekeeper.message_expires_at_ms(msg.time, msg.msg_expiry_interval, %(default_ttl_s)s)
                            <= extract(EPOCH FROM statement_timestamp()) * 1000
                        )
                    ) AS messages
                FROM device_publish_msg AS msg
                WHERE msg.client_id = client.client_id
            )
    END AS messages
FROM client
ORDER BY client.place
