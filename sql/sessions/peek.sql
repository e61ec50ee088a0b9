-- Read one message with its content; of several with the same packet id the newest.
-- params: client_id, packet_id
-- rows: at most one: (delivered_serial, now_ms, and the columns of a message)
-- index: idx_device_publish_msg_packet_id, session_states_pkey, device_session_ctx_pkey
SELECT
    -- include: delivered_serial
    floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint AS now_ms,
    serial_number,
    packet_id,
    packet_type,
    topic,
    payload,
    qos,
    time,
    -- include: message_properties
    user_properties
FROM device_publish_msg
WHERE
    client_id = %(client_id)s
    AND packet_id = %(packet_id)s
ORDER BY serial_number DESC
LIMIT 1
