-- Return the last packet id of a session.
-- params: client_id
-- rows: one: (packet id, or null)
-- index: device_session_ctx_pkey, device_publish_msg_pkey
SELECT CASE WHEN last_given.packet_id BETWEEN 1 AND 65535 THEN last_given.packet_id END AS last_packet_id
FROM (
    SELECT
        -- The rule of snapshot.last_given: the vendor's broker writes session and messages in two transactions, so
        -- either may be ahead, and a counter that is no packet id says nothing.
        CASE
            WHEN newest.serial_number > coalesce(ctx.last_serial_number, -1) THEN newest.packet_id
            WHEN ctx.last_packet_id IS NULL OR ctx.last_packet_id NOT BETWEEN 1 AND 65535 THEN newest.packet_id
            ELSE ctx.last_packet_id
        END AS packet_id
    FROM (SELECT %(client_id)s::varchar AS client_id) AS wanted
    LEFT JOIN device_session_ctx AS ctx ON wanted.client_id = ctx.client_id
    LEFT JOIN LATERAL (
        SELECT
            serial_number,
            packet_id
    -- include: newest_message
    ) AS newest ON TRUE
) AS last_given
