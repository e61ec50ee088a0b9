-- Tell what another store has to know of a session beside its messages.
-- params: client_id
-- rows: one: (last_packet_id or null, last_serial, delivered_serial, sources, offset of the last batch of each)
-- index: device_session_ctx_pkey, device_publish_msg_pkey, session_states_pkey, session_sources_pkey
SELECT
    CASE WHEN last_given.packet_id BETWEEN 1 AND 65535 THEN last_given.packet_id END AS last_packet_id,
    last_given.serial AS last_serial,
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
FROM (
    SELECT
        wanted.client_id,
        ctx.last_serial_number,
        greatest(ctx.last_serial_number, newest.serial_number, -1) AS serial,
        -- The vendor's broker writes session and messages in two transactions, so either may be ahead.
        CASE
            WHEN newest.serial_number > coalesce(ctx.last_serial_number, -1) THEN newest.packet_id
            ELSE ctx.last_packet_id
        END AS packet_id
    FROM (SELECT %(client_id)s::varchar AS client_id) AS wanted
    LEFT JOIN device_session_ctx AS ctx ON wanted.client_id = ctx.client_id
    LEFT JOIN LATERAL (
        SELECT
            msg.serial_number,
            msg.packet_id
        FROM device_publish_msg AS msg
        WHERE msg.client_id = wanted.client_id
        ORDER BY msg.serial_number DESC
        LIMIT 1
    ) AS newest ON TRUE
) AS last_given
LEFT JOIN queuekeeper.session_states AS state
    ON
        last_given.client_id = state.client_id
        -- Otherwise somebody else has cleared the session since.
        AND last_given.last_serial_number >= state.known_serial
