-- Tell whether the source may be read in the order of its keys: plain tables that its memory is expected to hold, since
-- rows lie in another order than their clients, and a collation that tells all ids apart and still is the index's.
-- params: none
-- rows: one: (whether it may, bytes of both tables)
-- index: none
SELECT
    bool_and(
        pg_class.relkind = 'r'
        AND pg_collation.collisdeterministic
        AND CASE pg_collation.collprovider
            WHEN 'd'
                THEN
                    pg_database.datcollversion
                    IS NOT DISTINCT FROM pg_database_collation_actual_version(pg_database.oid)
            ELSE pg_collation.collversion IS NOT DISTINCT FROM pg_collation_actual_version(pg_collation.oid)
        END
    )
    AND sum(pg_table_size(pg_class.oid)) <= pg_size_bytes(current_setting('effective_cache_size')) AS may_be_read,
    sum(pg_table_size(pg_class.oid))::bigint AS size_bytes
FROM (VALUES ('device_publish_msg'), ('device_session_ctx')) AS wanted (name)
INNER JOIN pg_catalog.pg_class ON to_regclass(wanted.name) = pg_class.oid
INNER JOIN pg_catalog.pg_attribute ON pg_class.oid = pg_attribute.attrelid AND pg_attribute.attname = 'client_id'
INNER JOIN pg_catalog.pg_collation ON pg_attribute.attcollation = pg_collation.oid
INNER JOIN pg_catalog.pg_database ON pg_database.datname = current_database()
