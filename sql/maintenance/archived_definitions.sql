-- Read constraints and indexes of a table as the statements that make them.
-- params: table_oid
-- rows: one per constraint and index: (statement)
-- index: of the system catalog
SELECT
    format(
        'ALTER TABLE %%s ADD CONSTRAINT %%I %%s', conrelid::regclass, conname, pg_get_constraintdef(oid)
    ) AS definition
FROM pg_constraint
WHERE conrelid = %(table_oid)s::oid AND contype IN ('p', 'u', 'c', 'f', 'x')
UNION ALL
SELECT pg_get_indexdef(index_info.indexrelid) AS definition
FROM pg_index AS index_info
LEFT JOIN pg_constraint AS made_by
    ON index_info.indexrelid = made_by.conindid AND index_info.indrelid = made_by.conrelid
WHERE index_info.indrelid = %(table_oid)s::oid AND made_by.oid IS NULL
ORDER BY definition
