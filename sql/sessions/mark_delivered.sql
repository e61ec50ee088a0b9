-- Record that messages of a session have been sent up to a serial; this never goes back.
-- params: client_id, serial
-- rows: one when it moved: (client_id)
-- index: session_states_pkey, device_session_ctx_pkey, device_publish_msg_pkey
INSERT INTO queuekeeper.session_states AS state (client_id, known_serial, delivered_serial)
SELECT
    ctx.client_id,
    coalesce(ctx.last_serial_number, -1) AS known_serial,
    -- A serial beyond the last one cannot have been sent.
    least(%(serial)s, greatest(ctx.last_serial_number, newest.serial_number)) AS delivered_serial
FROM device_session_ctx AS ctx
CROSS JOIN
    LATERAL (
        SELECT max(msg.serial_number) AS serial_number
        FROM device_publish_msg AS msg
        WHERE msg.client_id = ctx.client_id
    ) AS newest
WHERE
    ctx.client_id = %(client_id)s
    AND (
        newest.serial_number IS NOT NULL
        -- All messages were acknowledged since.
        OR EXISTS (
            SELECT 1 AS one
            FROM queuekeeper.session_states AS kept
            WHERE kept.client_id = ctx.client_id
        )
    )
    AND %(serial)s > -1
ON CONFLICT (client_id) DO UPDATE
    SET
        delivered_serial = excluded.delivered_serial
    WHERE state.delivered_serial < excluded.delivered_serial
RETURNING client_id
