-- End the record of a retired partition: it was attached again, or dropped.
-- params: table, partition_oid, former, state, now_ms
-- rows: one for each record that was in a former state: (retired_id)
-- index: retired_partitions_table_name_idx
UPDATE queuekeeper.retired_partitions
SET
    state = %(state)s,
    ended_at = to_timestamp(%(now_ms)s / 1000.0)
WHERE
    table_name = %(table)s
    AND partition_oid = %(partition_oid)s::oid
    AND state = any(%(former)b::text[])
RETURNING retired_id
