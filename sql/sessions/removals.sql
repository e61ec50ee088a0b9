-- name: remove_messages
-- Remove messages of a session by their serials.
-- params: client_id, serials
-- rows: one: (messages removed)
-- index: device_publish_msg_pkey
WITH doomed AS (
    SELECT
        client_id,
        serial_number
    FROM device_publish_msg
    WHERE
        client_id = %(client_id)s
        AND serial_number = any(%(serials)b::bigint[])
    ORDER BY serial_number
    FOR UPDATE
),

removed AS (
    DELETE FROM device_publish_msg AS msg
    USING doomed
    WHERE (msg.client_id, msg.serial_number) = (doomed.client_id, doomed.serial_number)
    RETURNING msg.serial_number
)

SELECT count(*) AS messages
FROM removed;

-- name: remove_replaced_messages
-- Remove expired messages of a locked session whose packet ids are used again; messages that others are removing are
-- skipped.
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
        AND packet_id = any(%(packet_ids)b::int[])
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
FROM removed;

-- name: purge_messages
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
FROM removed;

-- name: remove_dead_messages
-- Remove expired messages of locked sessions, at most 10,000 of each; messages that others are removing are skipped.
-- params: client_ids, default_ttl_s
-- rows: (client_id, messages removed)
-- index: device_publish_msg_pkey
WITH doomed AS (
    SELECT
        msg.client_id,
        msg.serial_number
    FROM unnest(%(client_ids)b::varchar[]) AS wanted (client_id)
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
GROUP BY client_id;

-- name: expired_sessions
-- Count expired messages in some blocks of the vendor's table, by session.
-- params: first_place, end_place, default_ttl_s; both places are such as (1000,0), the latter not included
-- rows: (client_id, messages)
-- index: none; reads the blocks named
SELECT
    client_id,
    count(*) AS messages
FROM device_publish_msg
WHERE
    ctid >= %(first_place)s::tid
    AND ctid < %(end_place)s::tid
    AND queuekeeper.message_expires_at_ms(time, msg_expiry_interval, %(default_ttl_s)s)
    <= extract(EPOCH FROM statement_timestamp()) * 1000
GROUP BY client_id;

-- name: remove_expired
-- Remove expired messages in some blocks of the vendor's table; messages that others have locked are left to the next
-- run, so that this one does not wait.
-- params: first_place, end_place, default_ttl_s, client_ids; both places are such as (1000,0), the latter not included;
-- client_ids: of the sessions to look at; null for all
-- rows: (client_id, messages removed)
-- index: device_publish_msg_pkey; reads the blocks named
WITH doomed AS (
    SELECT
        client_id,
        serial_number
    FROM device_publish_msg
    WHERE
        ctid >= %(first_place)s::tid
        AND ctid < %(end_place)s::tid
        AND queuekeeper.message_expires_at_ms(time, msg_expiry_interval, %(default_ttl_s)s)
        <= extract(EPOCH FROM statement_timestamp()) * 1000
        AND (%(client_ids)b::varchar[] IS NULL OR client_id = any(%(client_ids)b::varchar[]))
    FOR UPDATE SKIP LOCKED
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
GROUP BY client_id;
