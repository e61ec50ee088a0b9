-- List the tables that are partitioned by range and are not partitions themselves.
-- params: none
-- rows: (table_name, default_name, pending_detaches); default_name is null where there is no DEFAULT partition; a
-- detachment that a session is at is not pending
-- index: none, the catalog's own and the server's view of locks
SELECT
    format('%I.%I', namespace.nspname, relation.relname) AS table_name,
    CASE
        WHEN partitioned.partdefid <> 0
            THEN (
                SELECT format('%I.%I', default_namespace.nspname, default_relation.relname)
                FROM pg_class AS default_relation
                INNER JOIN pg_namespace AS default_namespace ON default_relation.relnamespace = default_namespace.oid
                WHERE default_relation.oid = partitioned.partdefid
            )
    END AS default_name,
    (
        SELECT count(*)
        FROM pg_inherits AS inheritance
        WHERE
            inheritance.inhparent = relation.oid
            AND inheritance.inhdetachpending
            -- The session that ends it locks the partition, or waits for that.
            AND NOT EXISTS (
                SELECT
                FROM pg_locks AS at_work
                INNER JOIN pg_database AS here ON at_work.database = here.oid
                WHERE
                    at_work.relation = inheritance.inhrelid
                    AND here.datname = current_database()
                    AND at_work.mode = 'AccessExclusiveLock'
            )
            -- Before that it holds nothing of the table, and waits for the transactions that do.
            AND NOT EXISTS (
                SELECT
                FROM pg_locks AS waiting
                INNER JOIN pg_locks AS awaited
                    ON waiting.virtualxid = awaited.virtualxid AND awaited.granted AND awaited.mode = 'ExclusiveLock'
                INNER JOIN pg_locks AS held ON awaited.pid = held.pid
                INNER JOIN pg_database AS here ON held.database = here.oid
                WHERE
                    waiting.mode = 'ShareLock'
                    AND NOT waiting.granted
                    AND held.relation = relation.oid
                    AND here.datname = current_database()
            )
    ) AS pending_detaches
FROM pg_partitioned_table AS partitioned
INNER JOIN pg_class AS relation ON partitioned.partrelid = relation.oid
INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
WHERE partitioned.partstrat = 'r' AND NOT relation.relispartition
ORDER BY 1
