-- List the partitions of a table with their bounds; those whose detach is under way or was interrupted are among them.
-- params: table_oid
-- rows: (oid, name, schema_name, relation_name, owner, relkind, bound, pending, row_estimate, size_bytes)
-- index: none, the catalog's own
SELECT
    -- include: relation_columns
    relation.relkind::text AS relkind,
    pg_get_expr(relation.relpartbound, relation.oid) AS bound,
    inheritance.inhdetachpending AS pending,
    CASE WHEN relation.reltuples >= 0 THEN relation.reltuples::bigint END AS row_estimate,
    CASE WHEN relation.relkind IN ('r', 'p') THEN pg_total_relation_size(relation.oid) ELSE 0 END AS size_bytes
FROM pg_inherits AS inheritance
INNER JOIN pg_class AS relation ON inheritance.inhrelid = relation.oid
INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
WHERE inheritance.inhparent = %(table_oid)s::oid
ORDER BY relation.oid
