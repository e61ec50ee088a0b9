-- Page through sessions that have ended, and may have no messages any more.
-- params: after_client_id, limit, default_ttl_s; default_ttl_s: pass over expired messages, for a dry run, which has
-- not removed them; null: a session that has any is not idle
-- rows: (client_id, now_ms)
-- index: session_states_pkey, device_publish_msg_pkey
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
        WHERE
            msg.client_id = state.client_id
            AND (
                %(default_ttl_s)s::bigint IS NULL
                OR queuekeeper.message_expires_at_ms(msg.time, msg.msg_expiry_interval, %(default_ttl_s)s)
                > extract(EPOCH FROM statement_timestamp()) * 1000
            )
    )
ORDER BY state.client_id
LIMIT %(limit)s
