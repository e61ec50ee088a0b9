-- Read a page of a session's messages in the order of delivery, bounded in rows and in bytes.
-- params: client_id, first_serial, backlog_serial, limit, max_bytes, default_ttl_s; backlog_serial: null for the newest
-- message's; max_bytes: of the payloads of live messages
-- rows: one at least: (backlog_serial, delivered_serial, now_ms, messages available, columns of a message); the last
-- are null when there is no message; more are available than rows where the page does not hold them
-- index: device_publish_msg_pkey, session_states_pkey, device_session_ctx_pkey
WITH session AS (
    SELECT
        coalesce(
            %(backlog_serial)s::bigint,
            (
                SELECT max(newest.serial_number)
                FROM device_publish_msg AS newest
                WHERE newest.client_id = %(client_id)s
            ),
            -1
        ) AS backlog_serial,
        -- include: delivered_serial
        floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint AS now_ms
),

page AS (
    SELECT
        msg.*,
        row_number() OVER (ORDER BY msg.serial_number) AS place,
        count(*) OVER () AS available,
        sum(
            CASE
                WHEN
                    queuekeeper.message_expires_at_ms(msg.time, msg.msg_expiry_interval, %(default_ttl_s)s)
                    > extract(EPOCH FROM statement_timestamp()) * 1000
                    THEN octet_length(msg.payload)
                ELSE 0
            END
        ) OVER (ORDER BY msg.serial_number) AS bytes
    FROM (
        SELECT *
        FROM device_publish_msg
        WHERE
            client_id = %(client_id)s
            AND serial_number >= %(first_serial)s
            AND serial_number <= (SELECT session.backlog_serial FROM session)
        ORDER BY serial_number
        -- One more than asked for tells whether there are more.
        LIMIT %(limit)s + 1
    ) AS msg
)

SELECT
    session.backlog_serial,
    session.delivered_serial,
    session.now_ms,
    page.available,
    page.serial_number,
    page.packet_id,
    page.packet_type,
    page.topic,
    page.payload,
    page.qos,
    page.time,
    page.retain,
    page.msg_expiry_interval,
    page.payload_format_indicator,
    page.content_type,
    page.response_topic,
    page.correlation_data,
    page.user_properties
FROM session
LEFT JOIN page ON page.place <= %(limit)s AND (page.place = 1 OR page.bytes <= %(max_bytes)s)
ORDER BY page.serial_number
