-- Remove the oldest messages of locked sessions: first those that were not sent yet, then those in flight; messages
-- that others are removing are skipped.
-- params: client_ids, excess, delivered_serials; excess: how many to remove
-- rows: (client_id, messages removed, those of them in flight)
-- index: device_publish_msg_pkey
WITH doomed AS (
    SELECT
        oldest.client_id,
        oldest.serial_number,
        oldest.in_flight
    FROM
        unnest(%(client_ids)b::varchar[], %(excess)b::int[], %(delivered_serials)b::bigint[])
            AS wanted (client_id, excess, delivered_serial)
    CROSS JOIN LATERAL (
        SELECT
            candidate.client_id,
            candidate.serial_number,
            candidate.in_flight
        FROM (
            (
                SELECT
                    msg.client_id,
                    msg.serial_number,
                    FALSE AS in_flight
                FROM device_publish_msg AS msg
                WHERE
                    msg.client_id = wanted.client_id
                    AND msg.serial_number > wanted.delivered_serial
                ORDER BY msg.serial_number
                LIMIT wanted.excess
            )
            UNION ALL
            (
                SELECT
                    msg.client_id,
                    msg.serial_number,
                    TRUE AS in_flight
                FROM device_publish_msg AS msg
                WHERE
                    msg.client_id = wanted.client_id
                    AND msg.serial_number <= wanted.delivered_serial
                ORDER BY msg.serial_number
                LIMIT wanted.excess
            )
        ) AS candidate
        ORDER BY candidate.in_flight, candidate.serial_number
        LIMIT wanted.excess
    ) AS oldest
),

locked AS (
    SELECT
        msg.client_id,
        msg.serial_number,
        doomed.in_flight
    FROM doomed
    INNER JOIN device_publish_msg AS msg
        ON doomed.client_id = msg.client_id AND doomed.serial_number = msg.serial_number
    FOR UPDATE OF msg SKIP LOCKED
),

removed AS (
    DELETE FROM device_publish_msg AS msg
    USING locked
    WHERE (msg.client_id, msg.serial_number) = (locked.client_id, locked.serial_number)
    RETURNING msg.client_id, locked.in_flight
)

SELECT
    client_id,
    count(*) AS messages,
    count(*) FILTER (WHERE in_flight) AS in_flight
FROM removed
GROUP BY client_id
