-- Serial up to which a session was delivered; -1 where nothing was.
coalesce(
    (
        SELECT state.delivered_serial
        FROM queuekeeper.session_states AS state
        INNER JOIN device_session_ctx AS ctx ON state.client_id = ctx.client_id
        WHERE
            state.client_id = %(client_id)s
            -- Otherwise another program has cleared the session since.
            AND ctx.last_serial_number >= state.known_serial
    ),
    -1
) AS delivered_serial,
