-- Estimate how large the B-tree indexes of tables would be if they were built anew; nothing of them is read.
-- params: oids, least_bytes; least_bytes is the size of the smallest index
-- rows: (name, table_name, row_count, size_bytes, needed_bytes), as of the last VACUUM or ANALYZE; without those whose
-- rows or widths are not known. Duplicates take less than estimated, so that bloat may be missed, and is not made up
-- index: none, the catalog's own
SELECT
    format('%%I.%%I', namespace.nspname, relation.relname) AS name,
    format('%%I.%%I', table_namespace.nspname, owner.relname) AS table_name,
    cast(relation.reltuples AS bigint) AS row_count,
    relation.relpages * pages.size_bytes AS size_bytes,
    cast(
        -- Header and place of each entry; a page without its header and end, filled as far as a build fills it.
        (2 + ceil(relation.reltuples * (12 + 8 * ceil(widths.entry / 8.0)) / ((pages.size_bytes - 40) * 0.9)))
        * pages.size_bytes AS bigint
    ) AS needed_bytes
FROM pg_index AS entries
INNER JOIN pg_class AS relation ON entries.indexrelid = relation.oid
INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
INNER JOIN pg_am AS method ON relation.relam = method.oid
INNER JOIN pg_class AS owner ON entries.indrelid = owner.oid
INNER JOIN pg_namespace AS table_namespace ON owner.relnamespace = table_namespace.oid
CROSS JOIN (SELECT cast(current_setting('block_size') AS bigint) AS size_bytes) AS pages
INNER JOIN LATERAL (
    SELECT
        sum(coalesce(nullif(attribute.attlen, -1), statistics.avg_width)) AS entry,
        bool_and(attribute.attlen > 0 OR statistics.avg_width IS NOT NULL) AS is_known
    FROM pg_attribute AS attribute
    LEFT JOIN pg_attribute AS own
        ON owner.oid = own.attrelid AND entries.indkey[attribute.attnum - 1] = own.attnum AND own.attnum > 0
    LEFT JOIN pg_stats AS statistics
        ON
            NOT statistics.inherited
            AND (
                table_namespace.nspname = statistics.schemaname
                AND owner.relname = statistics.tablename
                AND statistics.attname = own.attname
                -- Expressions have statistics under the index.
                OR own.attnum IS NULL
                AND namespace.nspname = statistics.schemaname
                AND relation.relname = statistics.tablename
                AND attribute.attname = statistics.attname
            )
    WHERE attribute.attrelid = relation.oid AND attribute.attnum > 0
) AS widths ON widths.is_known
WHERE
    entries.indrelid = any(%(oids)b::oid[])
    AND relation.relkind = 'i'
    AND method.amname = 'btree'
    AND relation.reltuples >= 0
    AND relation.relpages * pages.size_bytes >= %(least_bytes)s
ORDER BY relation.relpages DESC
