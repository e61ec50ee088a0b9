-- Remove locked sessions that have no messages, with all we keep of them.
-- params: client_ids, now_ms; now_ms: spare those whose end has not come; null: spare none
-- rows: one: (sessions removed)
-- index: device_session_ctx_pkey, session_states_pkey, device_publish_msg_pkey
WITH empty AS (
    SELECT wanted.client_id
    FROM unnest(%(client_ids)b::varchar[]) AS wanted (client_id)
    LEFT JOIN queuekeeper.session_states AS state ON wanted.client_id = state.client_id
    WHERE
        NOT EXISTS (
            SELECT 1 AS one
            FROM device_publish_msg AS msg
            WHERE msg.client_id = wanted.client_id
        )
        AND (%(now_ms)s::bigint IS NULL OR state.until_ms <= %(now_ms)s::bigint)
),

forgotten AS (
    DELETE FROM queuekeeper.session_states AS state
    USING empty
    WHERE state.client_id = empty.client_id
),

removed AS (
    DELETE FROM device_session_ctx AS ctx
    USING empty
    WHERE ctx.client_id = empty.client_id
    RETURNING ctx.client_id
)

SELECT count(*) AS sessions
FROM removed
