-- Look relations up by their OID: those that are gone are left out.
-- params: oids
-- rows: (oid, schema_name, relation_name, owner, whether it is a partition, size_bytes)
-- index: none, the catalog's own
SELECT
    relation.oid::bigint AS oid,
    namespace.nspname::text AS schema_name,
    relation.relname::text AS relation_name,
    relation.relowner::regrole::text AS owner,
    relation.relispartition AS is_partition,
    pg_total_relation_size(relation.oid) AS size_bytes
FROM pg_class AS relation
INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
WHERE relation.oid = any(%(oids)b::oid[])
