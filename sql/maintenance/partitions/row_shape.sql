-- Name the columns of a table that can be written, and those of its primary key, unless that is deferrable.
-- params: oid
-- rows: one: (columns, key_columns)
-- index: none, the catalog's own
SELECT
    array_agg(attribute.attname::text ORDER BY attribute.attnum) FILTER (WHERE attribute.attgenerated = '') AS columns,
    array_agg(attribute.attname::text ORDER BY attribute.attnum) FILTER (
        WHERE attribute.attnum = any((entry.indkey::int2[])[0:entry.indnkeyatts - 1]) -- not what it INCLUDEs
    ) AS key_columns
FROM pg_attribute AS attribute
LEFT JOIN pg_index AS entry
    ON attribute.attrelid = entry.indrelid AND entry.indisprimary AND entry.indimmediate
WHERE
    attribute.attrelid = %(oid)s::oid
    AND attribute.attnum > 0
    AND NOT attribute.attisdropped
