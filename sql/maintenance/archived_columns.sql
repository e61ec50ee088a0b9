-- Read the columns of a table with their types; of a domain also what it rests on.
-- params: table_oid
-- rows: one per column, in order: (name, type, type that a domain rests on, whether it takes no NULL, default, how it
-- is generated: STORED, VIRTUAL or not at all)
-- index: of the system catalog
WITH RECURSIVE rests_on AS (
    SELECT
        attnum,
        atttypid AS type_oid
    FROM pg_attribute
    WHERE attrelid = %(table_oid)s::oid AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT
        rests_on.attnum,
        type.typbasetype AS type_oid
    FROM rests_on
    INNER JOIN pg_type AS type ON rests_on.type_oid = type.oid
    WHERE type.typtype = 'd'
)

SELECT
    attribute.attname AS name,
    format_type(attribute.atttypid, attribute.atttypmod) AS type_name,
    format_type(type.oid, NULL) AS base_type,
    attribute.attnotnull AS is_not_null,
    pg_get_expr(default_value.adbin, default_value.adrelid) AS default_text,
    CASE attribute.attgenerated WHEN 's' THEN 'STORED' WHEN 'v' THEN 'VIRTUAL' END AS generated
FROM pg_attribute AS attribute
INNER JOIN rests_on ON attribute.attnum = rests_on.attnum
INNER JOIN pg_type AS type ON rests_on.type_oid = type.oid
LEFT JOIN pg_attrdef AS default_value
    ON attribute.attrelid = default_value.adrelid AND attribute.attnum = default_value.adnum
WHERE attribute.attrelid = %(table_oid)s::oid AND type.typtype <> 'd'
ORDER BY attribute.attnum
