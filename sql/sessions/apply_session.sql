-- Record the last serial and packet id of a session in another store.
-- params: client_id, last_serial, last_packet_id
-- rows: one: (now_ms)
-- index: device_session_ctx_pkey
INSERT INTO device_session_ctx AS ctx (client_id, last_updated_time, last_serial_number, last_packet_id)
VALUES (
    %(client_id)s,
    floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint,
    %(last_serial)s,
    %(last_packet_id)s
)
ON CONFLICT (client_id) DO UPDATE
    SET
        last_updated_time = excluded.last_updated_time,
        last_serial_number = excluded.last_serial_number,
        last_packet_id = excluded.last_packet_id
RETURNING ctx.last_updated_time
