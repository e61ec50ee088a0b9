-- Describe one session: whether it has a row, how many messages wait, and its last serial and packet id; and whether we
-- may read the records of sessions in schema queuekeeper, if it exists.
-- params: client_id
-- rows: one: (exists, messages, last_packet_id, last_serial, has_state)
-- index: device_session_ctx_pkey, device_publish_msg_pkey
SELECT
    ctx.client_id IS NOT NULL AS session_exists,
    (
        SELECT count(*)
        FROM device_publish_msg AS msg
        WHERE msg.client_id = wanted.client_id
    ) AS messages,
    nullif(ctx.last_packet_id, 0) AS last_packet_id,
    nullif(ctx.last_serial_number, -1) AS last_serial,
    (
        SELECT count(*) > 0
        FROM pg_catalog.pg_class AS relation
        INNER JOIN pg_catalog.pg_namespace AS namespace ON relation.relnamespace = namespace.oid
        WHERE
            namespace.nspname = 'queuekeeper'
            AND relation.relname = 'session_states'
            AND has_schema_privilege(namespace.oid, 'USAGE')
            AND has_table_privilege(relation.oid, 'SELECT')
    ) AS has_state
FROM (SELECT %(client_id)s::varchar AS client_id) AS wanted
LEFT JOIN device_session_ctx AS ctx ON wanted.client_id = ctx.client_id
