-- Page through sessions that have ended, and may have no messages any more.
-- params: after_client_id, limit
-- rows: (client_id, now_ms)
-- index: session_states_pkey
SELECT
    state.client_id,
    floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint AS now_ms
FROM queuekeeper.session_states AS state
WHERE
    state.client_id > %(after_client_id)s
    AND state.until_ms <= floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint
    AND NOT EXISTS (
        SELECT 1 AS one
        FROM device_publish_msg AS msg
        WHERE msg.client_id = state.client_id
    )
ORDER BY state.client_id
LIMIT %(limit)s
