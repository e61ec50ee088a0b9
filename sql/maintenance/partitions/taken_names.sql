-- List the names of relations that are taken in two schemas.
-- params: schema_name, quarantine_schema, names
-- rows: (schema_name, relation_name)
-- index: none, the catalog's own
SELECT
    namespace.nspname::text AS schema_name,
    relation.relname::text AS relation_name
FROM pg_class AS relation
INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
WHERE
    namespace.nspname IN (%(schema_name)s, %(quarantine_schema)s)
    AND relation.relname = any(%(names)b::text[])
