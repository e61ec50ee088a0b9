-- Read the state of locked sessions that is needed before messages are saved.
-- params: client_ids, sources, counts, limit; counts: messages to save; limit: a queue that may become longer is
-- counted, as far as 10,000 messages beyond it
-- rows: one per session: (client_id, last_serial, last_packet_id or 0, now_ms, delivered_serial, messages at most,
-- messages or null when they were not counted, batch_offset, first_serial, packet_ids of the source's last batch,
-- those of the next packet ids that messages have, alive or not, whether we keep anything of the session)
-- index: device_session_ctx_pkey, device_publish_msg_pkey, session_states_pkey, session_sources_pkey,
-- idx_device_publish_msg_packet_id
WITH last_given AS (
    SELECT
        wanted.client_id,
        wanted.source,
        wanted.count,
        greatest(ctx.last_serial_number, newest.serial_number, -1) AS last_serial,
        -- The rule of snapshot.last_given: the vendor's broker writes session and messages in two transactions, so
        -- either may be ahead, and a counter that is no packet id says nothing.
        CASE
            WHEN newest.serial_number > coalesce(ctx.last_serial_number, -1) THEN newest.packet_id
            WHEN ctx.last_packet_id IS NULL OR ctx.last_packet_id NOT BETWEEN 1 AND 65535 THEN newest.packet_id
            ELSE ctx.last_packet_id
        END AS last_packet_id
    FROM
        unnest(%(client_ids)b::varchar[], %(sources)b::text[], %(counts)b::int[])
            AS wanted (client_id, source, count)
    LEFT JOIN device_session_ctx AS ctx ON wanted.client_id = ctx.client_id
    LEFT JOIN LATERAL (
        SELECT
            serial_number,
            packet_id
    -- include: newest_message
    ) AS newest ON TRUE
),

session AS (
    SELECT
        last_given.client_id,
        last_given.source,
        last_given.count,
        last_given.last_serial,
        CASE
            WHEN last_given.last_packet_id BETWEEN 1 AND 65535 THEN last_given.last_packet_id
            ELSE 0
        END AS last_packet_id,
        coalesce(state.delivered_serial, -1) AS delivered_serial,
        state.client_id IS NOT NULL AS is_kept,
        CASE WHEN state.known_serial = last_given.last_serial THEN state.message_bound END AS message_bound
    FROM last_given
    LEFT JOIN queuekeeper.session_states AS state ON last_given.client_id = state.client_id
)

SELECT
    session.client_id,
    session.last_serial,
    session.last_packet_id,
    floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint AS now_ms,
    session.delivered_serial,
    session.message_bound,
    CASE
        WHEN session.message_bound IS NULL OR session.message_bound + session.count > %(limit)s THEN (
            SELECT count(*)
            FROM (
                SELECT 1 AS one
                FROM device_publish_msg AS msg
                WHERE msg.client_id = session.client_id
                ORDER BY msg.serial_number
                LIMIT %(limit)s + 10000
            ) AS counted
        )
    END AS messages,
    batch.batch_offset,
    batch.first_serial,
    batch.packet_ids,
    array(
        SELECT msg.packet_id
        FROM device_publish_msg AS msg
        WHERE
            msg.client_id = session.client_id
            AND (
                msg.packet_id BETWEEN session.last_packet_id + 1 AND session.last_packet_id + session.count
                -- After 65,535 comes 1.
                OR msg.packet_id BETWEEN 1 AND session.last_packet_id + session.count - 65535
            )
    ) AS used_packet_ids,
    session.is_kept
FROM session
LEFT JOIN queuekeeper.session_sources AS batch
    ON session.client_id = batch.client_id AND session.source = batch.source
