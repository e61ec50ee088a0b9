-- Return whether a database has a mark, and how many tables it has besides those of schema queuekeeper.
-- params: mark
-- rows: one: (is_marked, tables)
-- index: none
SELECT
    coalesce(shobj_description(databases.oid, 'pg_database') = %(mark)s, FALSE) AS is_marked,
    (
        SELECT count(*)
        FROM pg_catalog.pg_class AS tables
        INNER JOIN pg_catalog.pg_namespace AS schemas ON tables.relnamespace = schemas.oid
        WHERE
            tables.relkind IN ('r', 'p')
            AND schemas.nspname NOT IN ('pg_catalog', 'information_schema', 'queuekeeper')
            AND schemas.nspname NOT LIKE 'pg\_toast%%'
    ) AS tables
FROM pg_catalog.pg_database AS databases
WHERE databases.datname = current_database()
