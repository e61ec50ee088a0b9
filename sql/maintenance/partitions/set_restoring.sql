-- Record that a dropped partition exists again, empty, to be loaded from its archive.
-- params: retired_id, table_oid, partition_name, relation
-- rows: none
-- index: retired_partitions_pkey
UPDATE queuekeeper.retired_partitions
SET
    state = 'restoring',
    table_oid = %(table_oid)s::oid,
    partition_name = %(partition_name)s,
    partition_oid = to_regclass(%(relation)s),
    ended_at = NULL
WHERE
    retired_id = %(retired_id)s
    AND state = 'dropped'
