-- Record that a partition is in quarantine, and its name there: its days there begin.
-- params: table, partition_oid, partition_name, quarantine_schema, now_ms, quarantine_days
-- rows: at most one: (retired_id)
-- index: retired_partitions_table_name_idx
UPDATE queuekeeper.retired_partitions
SET
    state = 'quarantined',
    partition_name = %(partition_name)s,
    quarantine_schema = %(quarantine_schema)s,
    retired_at = to_timestamp(%(now_ms)s / 1000.0),
    drop_after = to_timestamp(%(now_ms)s / 1000.0) + make_interval(days => %(quarantine_days)s)
WHERE
    table_name = %(table)s
    AND partition_oid = %(partition_oid)s::oid
    AND state = 'detaching'
RETURNING retired_id
