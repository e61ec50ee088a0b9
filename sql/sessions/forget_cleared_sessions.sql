-- Delete our records of sessions that another program has cleared since: their serials have started again.
-- params: client_ids
-- rows: none
-- index: session_states_pkey, device_session_ctx_pkey
DELETE FROM queuekeeper.session_states AS state
USING
    unnest(%(client_ids)b::text[]) AS wanted (client_id)
LEFT JOIN device_session_ctx AS ctx ON wanted.client_id = ctx.client_id
WHERE
    state.client_id = wanted.client_id
    AND (ctx.last_serial_number IS NULL OR ctx.last_serial_number < state.known_serial)
