-- List the tables that a table references, or that reference it: attaching and detaching locks them, too.
-- params: table_oid
-- rows: (relation, whether it refers to the table)
-- index: none, the catalog's own
SELECT DISTINCT
    other.oid::regclass::text AS relation,
    reference.confrelid = %(table_oid)s::oid AS refers_here
FROM pg_constraint AS reference
INNER JOIN pg_class AS other ON other.oid IN (reference.conrelid, reference.confrelid)
WHERE
    reference.contype = 'f'
    AND reference.conparentid = 0
    AND %(table_oid)s::oid IN (reference.conrelid, reference.confrelid)
    AND other.oid != %(table_oid)s::oid
ORDER BY 1
