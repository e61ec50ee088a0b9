-- Count retired partitions by state.
-- params: none
-- rows: (table_name, state, partitions, size_bytes)
-- index: retired_partitions_table_name_idx
SELECT
    table_name,
    state,
    count(*) AS partitions,
    cast(sum(size_bytes) AS bigint) AS size_bytes
FROM queuekeeper.retired_partitions
GROUP BY table_name, state
ORDER BY table_name, state
