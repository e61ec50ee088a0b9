-- Return whether an index finds the highest key of a partition.
-- params: partition_oid, key_column
-- rows: one: (whether there is one)
-- index: none, the catalog's own
SELECT count(*) > 0 AS has_key_index
FROM pg_index AS entry
INNER JOIN pg_class AS relation ON entry.indexrelid = relation.oid
INNER JOIN pg_am AS method ON relation.relam = method.oid
INNER JOIN pg_attribute AS attribute
    ON entry.indrelid = attribute.attrelid AND entry.indkey[0] = attribute.attnum
WHERE
    entry.indrelid = %(partition_oid)s::oid
    AND entry.indisvalid
    AND entry.indpred IS NULL
    AND method.amname = 'btree'
    AND attribute.attname = %(key_column)s
