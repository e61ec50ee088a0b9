-- Read one message with its content; of several with the same packet id the newest.
-- params: client_id, packet_id
-- rows: at most one: (delivered_serial, now_ms, and the columns of a message)
-- index: idx_device_publish_msg_packet_id, session_states_pkey, device_session_ctx_pkey
SELECT
    coalesce(
        (
            SELECT state.delivered_serial
            FROM queuekeeper.session_states AS state
            INNER JOIN device_session_ctx AS ctx ON state.client_id = ctx.client_id
            WHERE
                state.client_id = %(client_id)s
                AND ctx.last_serial_number >= state.known_serial
        ),
        -1
    ) AS delivered_serial,
    floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint AS now_ms,
    serial_number,
    packet_id,
    packet_type,
    topic,
    payload,
    qos,
    time,
    retain,
    msg_expiry_interval,
    payload_format_indicator,
    content_type,
    response_topic,
    correlation_data,
    user_properties
FROM device_publish_msg
WHERE
    client_id = %(client_id)s
    AND packet_id = %(packet_id)s
ORDER BY serial_number DESC
LIMIT 1
