-- Read the last value that the sequence of a column has given out, whatever has become of its row.
-- params: table_oid, key_column
-- rows: at most one: (last_value); null where it has given out none, or this role may not read it
-- index: none, the catalog's own
SELECT
    CASE
        WHEN has_sequence_privilege(entry.objid, 'USAGE, SELECT') THEN pg_sequence_last_value(entry.objid::regclass)
    END AS last_value
FROM pg_depend AS entry
INNER JOIN pg_class AS own ON entry.objid = own.oid AND own.relkind = 'S'
INNER JOIN pg_attribute AS attribute ON entry.refobjid = attribute.attrelid AND entry.refobjsubid = attribute.attnum
WHERE
    entry.classid = 'pg_class'::regclass
    AND entry.refclassid = 'pg_class'::regclass
    AND entry.refobjid = %(table_oid)s::oid
    AND entry.deptype IN ('a', 'i')
    AND attribute.attname = %(key_column)s
ORDER BY last_value DESC NULLS LAST
LIMIT 1
