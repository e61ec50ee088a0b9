-- name: partman_catalogs
-- List tables in which pg_partman notes what it maintains, found by their columns, in whatever schema they are.
-- params: none
-- rows: (schema, name, both quoted where SQL needs it, whether this role may read it)
-- index: none, the catalog's own
SELECT
    quote_ident(namespace.nspname) AS schema_name,
    quote_ident(namespace.nspname) || '.' || quote_ident(relation.relname) AS name,
    has_schema_privilege(namespace.oid, 'USAGE') AND has_table_privilege(relation.oid, 'SELECT') AS may_read
FROM pg_class AS relation
INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
WHERE
    relation.relname = 'part_config'
    AND relation.relkind IN ('r', 'p')
    AND 4 = (
        SELECT count(*)
        FROM pg_attribute AS attribute
        WHERE
            attribute.attrelid = relation.oid
            AND attribute.attname IN ('parent_table', 'control', 'partition_interval', 'premake')
            AND NOT attribute.attisdropped
    )
ORDER BY namespace.nspname;

-- name: version_sources
-- Say whether this role may read a table, and the version of an extension.
-- params: schema_name, relation_name, extension
-- rows: one: (whether this role may read the table; none where there is no such table, version)
-- index: none, the catalog's own
SELECT
    (
        SELECT has_schema_privilege(relation.relnamespace, 'USAGE') AND has_table_privilege(relation.oid, 'SELECT')
        FROM pg_class AS relation
        INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
        WHERE namespace.nspname = %(schema_name)s AND relation.relname = %(relation_name)s
    ) AS may_read,
    (
        SELECT entry.extversion
        FROM pg_extension AS entry
        WHERE entry.extname = %(extension)s
    ) AS version;

-- name: whole_name
-- Return the name of a table with its schema.
-- params: table
-- rows: at most one: (name, quoted where SQL needs it)
-- index: none, the catalog's own
SELECT format('%%I.%%I', namespace.nspname, relation.relname) AS name
FROM pg_class AS relation
INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
WHERE relation.oid = to_regclass(%(table)s);
