-- Lock sessions until the transaction ends, and create missing ones; in one order, so that writers queue up and never
-- deadlock.
-- params: client_ids
-- rows: (client_id) of each session that was missing
-- index: device_session_ctx_pkey, device_publish_msg_pkey
INSERT INTO device_session_ctx AS ctx (client_id, last_updated_time, last_serial_number, last_packet_id)
SELECT
    wanted.client_id,
    floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint AS now_ms,
    -- The vendor's broker may have left messages without a session.
    coalesce(newest.serial_number, -1) AS last_serial_number,
    coalesce(newest.packet_id, 0) AS last_packet_id
FROM unnest(%(client_ids)b::varchar[]) AS wanted (client_id)
LEFT JOIN LATERAL (
    SELECT
        serial_number,
        packet_id
-- include: newest_message
) AS newest ON TRUE
ORDER BY wanted.client_id
ON CONFLICT (client_id) DO UPDATE
    SET
        last_updated_time = excluded.last_updated_time
-- A row that no transaction has ever changed or locked.
RETURNING CASE WHEN ctx.xmax = 0 THEN ctx.client_id END AS made
