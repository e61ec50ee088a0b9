-- Return the state of a session, besides its messages, that another store needs.
-- params: client_id
-- rows: one: (whether there is a session, its last_packet_id, its last_serial, delivered_serial, sources, offset of the
-- last batch of each)
-- index: device_session_ctx_pkey, session_states_pkey, session_sources_pkey
SELECT
    ctx.client_id IS NOT NULL AS session_exists,
    ctx.last_packet_id,
    ctx.last_serial_number AS last_serial,
    coalesce(state.delivered_serial, -1) AS delivered_serial,
    array(
        SELECT batch.source FROM queuekeeper.session_sources AS batch
        WHERE batch.client_id = state.client_id
        ORDER BY batch.source
    ) AS sources,
    array(
        SELECT batch.batch_offset FROM queuekeeper.session_sources AS batch
        WHERE batch.client_id = state.client_id
        ORDER BY batch.source
    ) AS offsets
FROM (SELECT %(client_id)s::varchar AS client_id) AS wanted
LEFT JOIN device_session_ctx AS ctx ON wanted.client_id = ctx.client_id
LEFT JOIN queuekeeper.session_states AS state
    ON
        ctx.client_id = state.client_id
        -- Otherwise another program has cleared the session since.
        AND ctx.last_serial_number >= state.known_serial
