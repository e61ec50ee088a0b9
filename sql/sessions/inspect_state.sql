-- Describe our records of one session besides the vendor's columns.
-- params: client_id
-- rows: at most one: (delivered_serial or null, trimmed, expired, refused, quarantined)
-- index: session_states_pkey, device_session_ctx_pkey
SELECT
    nullif(state.delivered_serial, -1) AS delivered_serial,
    state.trimmed,
    state.expired,
    state.refused,
    state.quarantined
FROM queuekeeper.session_states AS state
INNER JOIN device_session_ctx AS ctx ON state.client_id = ctx.client_id
WHERE
    state.client_id = %(client_id)s
    -- Otherwise another program has cleared the session since.
    AND ctx.last_serial_number >= state.known_serial
