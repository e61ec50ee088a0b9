-- List the policies of this database.
-- params: none
-- rows: the fields of PartitionPolicy in their order, by table
-- index: none, the table is small
SELECT
    step,
    ahead,
    retention,
    far_future,
    lowest_needed_sql,
    archive,
    register_archives,
    quarantine_schema,
    quarantine_days,
    blocking_detach,
    storage,
    lock_timeout_ms,
    deadline_s,
    at_most,
    table_name
FROM queuekeeper.partition_policies
ORDER BY table_name
