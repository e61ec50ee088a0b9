-- List partitions that were taken out of their tables, oldest first.
-- params: table, retired_id; null for all
-- rows: the fields of RetiredPartition in their order
-- index: retired_partitions_pkey, retired_partitions_table_name_idx
SELECT
    retired_id,
    table_name,
    table_oid::bigint AS table_oid,
    partition_oid::bigint AS partition_oid,
    schema_name,
    partition_name,
    quarantine_schema,
    lower_bound,
    upper_bound,
    drained_default,
    state,
    size_bytes,
    reason,
    retired_at,
    drop_after,
    archived_at,
    archive,
    ended_at
FROM queuekeeper.retired_partitions
WHERE
    (%(table)s::text IS NULL OR table_name = %(table)s)
    AND (%(retired_id)s::numeric IS NULL OR retired_id = %(retired_id)s)
ORDER BY retired_id
