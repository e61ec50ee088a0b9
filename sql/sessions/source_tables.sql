-- Return the relations that have the names of the vendor's tables, and whether we may read all their rows.
-- params: none
-- rows: one per table that exists: (table, kind as in pg_class, whether we may read it,
-- whether row security hides rows from us, columns of its unique keys, each key sorted by name)
-- index: none
SELECT
    wanted.name,
    pg_class.relkind::text AS kind,
    has_table_privilege(pg_class.oid, 'SELECT') AS readable,
    row_security_active(pg_class.oid) AS filtered,
    array(
        SELECT (
            SELECT string_agg(pg_attribute.attname, ', ' ORDER BY pg_attribute.attname)
            FROM pg_catalog.pg_attribute
            WHERE
                pg_attribute.attrelid = pg_class.oid
                AND pg_attribute.attnum = any(pg_index.indkey::smallint[])
        )
        FROM pg_catalog.pg_index
        WHERE
            pg_index.indrelid = pg_class.oid
            AND pg_index.indisunique
            AND pg_index.indisvalid
            AND pg_index.indpred IS NULL
            AND pg_index.indexprs IS NULL
    ) AS unique_keys
FROM (VALUES ('device_publish_msg'), ('device_session_ctx')) AS wanted (name)
INNER JOIN pg_catalog.pg_class ON to_regclass(wanted.name) = pg_class.oid
ORDER BY wanted.name
