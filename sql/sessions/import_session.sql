-- Create a session unless it, or messages of it, exist.
-- params: client_id, last_serial, last_packet_id
-- rows: one when it was made: (now_ms)
-- index: device_session_ctx_pkey, device_publish_msg_pkey
INSERT INTO device_session_ctx (client_id, last_updated_time, last_serial_number, last_packet_id)
SELECT
    wanted.client_id,
    floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint AS now_ms,
    %(last_serial)s::bigint AS last_serial_number,
    %(last_packet_id)s::int AS last_packet_id
FROM (SELECT %(client_id)s::varchar AS client_id) AS wanted
WHERE
    NOT EXISTS (
        SELECT 1 AS one
        FROM device_publish_msg AS msg
        WHERE msg.client_id = wanted.client_id
    )
ON CONFLICT (client_id) DO NOTHING
RETURNING last_updated_time
