-- List tables of the event broker, and partitions of any table, that are past the age at which autovacuum freezes them.
-- params: freeze_share
-- rows: (table_name, freeze_share), the oldest first; freeze_share of autovacuum_freeze_max_age, or of multixacts' own
-- index: none, the catalog's own
SELECT
    format('%%I.%%I', aged.schema_name, aged.relation_name) AS table_name,
    aged.freeze_share
FROM (
    SELECT
        namespace.nspname AS schema_name,
        relation.relname AS relation_name,
        cast(
            greatest(
                age(relation.relfrozenxid) / cast(current_setting('autovacuum_freeze_max_age') AS numeric),
                mxid_age(relation.relminmxid) / cast(current_setting('autovacuum_multixact_freeze_max_age') AS numeric)
            ) AS double precision
        ) AS freeze_share
    FROM pg_class AS relation
    INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
    WHERE
        relation.relkind = 'r'
        AND relation.relpersistence <> 't'
        AND (namespace.nspname = 'pgmb' OR relation.relispartition)
) AS aged
WHERE aged.freeze_share > %(freeze_share)s
ORDER BY aged.freeze_share DESC, aged.schema_name ASC, aged.relation_name ASC
