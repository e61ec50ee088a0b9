-- Read how close tables are to the wraparound of transaction ids, partitions under the name of their table.
-- params: none
-- rows: (table_name, tables, freeze_share); freeze_share of the age at which autovacuum freezes at the latest, of
-- transactions or of multixacts, whichever is further on
-- index: none, the catalog's own
SELECT
    cast(cast(coalesce(pg_partition_root(relation.oid), relation.oid) AS regclass) AS text) AS table_name,
    count(*) AS tables,
    cast(
        max(
            greatest(
                age(relation.relfrozenxid) / cast(current_setting('autovacuum_freeze_max_age') AS numeric),
                mxid_age(relation.relminmxid) / cast(current_setting('autovacuum_multixact_freeze_max_age') AS numeric)
            )
        ) AS double precision
    ) AS freeze_share
FROM pg_class AS relation
INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
WHERE
    relation.relkind = 'r'
    AND relation.relpersistence <> 't'
    AND (namespace.nspname = 'pgmb' OR relation.relispartition)
GROUP BY 1
ORDER BY 1
