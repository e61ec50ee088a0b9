-- Read the columns of the tables in schema pgmb, by which a PGMB is known: its version stands nowhere.
-- params: none
-- rows: one per column of a table that is no partition: (table, column, type)
-- index: pg_attribute_relid_attnum_index
SELECT
    c.relname,
    a.attname,
    t.typname
FROM pg_class AS c
INNER JOIN pg_attribute AS a ON c.oid = a.attrelid
INNER JOIN pg_type AS t ON a.atttypid = t.oid
WHERE
    c.relnamespace = to_regnamespace('pgmb')
    AND c.relkind IN ('r', 'p')
    AND NOT c.relispartition
    AND a.attnum > 0
    AND NOT a.attisdropped
