-- List the sequences of a table's columns.
-- params: oid
-- rows: (column_name, sequence, is_identity)
-- index: none, the catalog's own
SELECT
    attribute.attname::text AS column_name,
    format('%%I.%%I', namespace.nspname, own.relname) AS sequence,
    entry.deptype = 'i' AS is_identity
FROM pg_depend AS entry
INNER JOIN pg_class AS own ON entry.objid = own.oid AND own.relkind = 'S'
INNER JOIN pg_namespace AS namespace ON own.relnamespace = namespace.oid
INNER JOIN pg_attribute AS attribute ON entry.refobjid = attribute.attrelid AND entry.refobjsubid = attribute.attnum
WHERE
    entry.classid = 'pg_class'::regclass
    AND entry.refclassid = 'pg_class'::regclass
    AND entry.refobjid = %(oid)s::oid
    AND entry.deptype IN ('a', 'i')
ORDER BY attribute.attnum
