-- Read how many rows of the event broker's tables are dead, partitions under the name of their table.
-- params: none
-- rows: (table_name, live_rows, dead_rows, size_bytes), estimates of the statistics
-- index: none, the catalog's own
SELECT
    cast(cast(coalesce(pg_partition_root(tables.relid), tables.relid) AS regclass) AS text) AS table_name,
    cast(sum(tables.n_live_tup) AS bigint) AS live_rows,
    cast(sum(tables.n_dead_tup) AS bigint) AS dead_rows,
    cast(sum(pg_total_relation_size(tables.relid)) AS bigint) AS size_bytes
FROM pg_stat_user_tables AS tables
WHERE tables.schemaname = 'pgmb'
GROUP BY 1
ORDER BY 1
