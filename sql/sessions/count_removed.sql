-- Add to the counters of sessions; a session without a row is not counted.
-- params: client_ids, expired, quarantined
-- rows: none
-- index: session_states_pkey, device_session_ctx_pkey
INSERT INTO queuekeeper.session_states AS state (client_id, known_serial, expired, quarantined)
SELECT
    ctx.client_id,
    coalesce(ctx.last_serial_number, -1) AS known_serial,
    removed.expired,
    removed.quarantined
FROM
    unnest(%(client_ids)b::text[], %(expired)b::bigint[], %(quarantined)b::bigint[])
        AS removed (client_id, expired, quarantined)
INNER JOIN device_session_ctx AS ctx ON removed.client_id = ctx.client_id
ORDER BY ctx.client_id
ON CONFLICT (client_id) DO UPDATE SET
    expired = state.expired + excluded.expired,
    quarantined = state.quarantined + excluded.quarantined
