-- List the relations of a table, itself and its indexes, whose names are taken in another schema.
-- params: oid, schema_name
-- rows: (oid, relation_name)
-- index: none, the catalog's own
SELECT
    relation.oid::bigint AS oid,
    relation.relname::text AS relation_name
FROM pg_class AS relation
LEFT JOIN pg_index AS entry ON relation.oid = entry.indexrelid
INNER JOIN pg_class AS other ON relation.relname = other.relname AND relation.oid != other.oid
INNER JOIN pg_namespace AS namespace ON other.relnamespace = namespace.oid
WHERE
    (relation.oid = %(oid)s::oid OR entry.indrelid = %(oid)s::oid)
    AND namespace.nspname = %(schema_name)s
ORDER BY relation.oid
