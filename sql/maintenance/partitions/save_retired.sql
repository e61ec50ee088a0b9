-- Record that a partition will be retired; update the record of one that is still in its table.
-- params: table, table_oid, partition_oid, schema_name, partition_name, quarantine_schema, lower, upper,
-- drained_default, state, size_bytes, reason, now_ms, quarantine_days
-- rows: at most one: (retired_id)
-- index: retired_partitions_table_name_idx
WITH known AS (
    UPDATE queuekeeper.retired_partitions
    SET
        schema_name = %(schema_name)s,
        partition_name = %(partition_name)s,
        quarantine_schema = %(quarantine_schema)s,
        lower_bound = %(lower)s,
        upper_bound = %(upper)s,
        size_bytes = %(size_bytes)s,
        reason = %(reason)s
    WHERE
        table_name = %(table)s
        AND partition_oid = %(partition_oid)s::oid
        AND state = 'detaching'
    RETURNING retired_id
)

INSERT INTO queuekeeper.retired_partitions (
    table_name, table_oid, partition_oid, schema_name, partition_name, quarantine_schema, lower_bound, upper_bound,
    drained_default, state, size_bytes, reason, retired_at, drop_after
)
SELECT
    %(table)s,
    %(table_oid)s::oid,
    %(partition_oid)s::oid,
    %(schema_name)s,
    %(partition_name)s,
    %(quarantine_schema)s,
    %(lower)s,
    %(upper)s,
    %(drained_default)s,
    %(state)s,
    %(size_bytes)s,
    %(reason)s,
    to_timestamp(%(now_ms)s / 1000.0) AS retired_at,
    to_timestamp(%(now_ms)s / 1000.0) + make_interval(days => %(quarantine_days)s) AS drop_after
WHERE NOT EXISTS (SELECT FROM known)
RETURNING retired_id
