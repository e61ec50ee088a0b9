-- Name the columns of the vendor's tables.
-- params: none
-- rows: (table, column, type)
-- index: none
SELECT
    wanted.name AS table_name,
    pg_attribute.attname AS column_name,
    format_type(pg_attribute.atttypid, NULL) AS type_name
FROM (VALUES ('device_publish_msg'), ('device_session_ctx')) AS wanted (name)
INNER JOIN pg_catalog.pg_attribute ON to_regclass(wanted.name) = pg_attribute.attrelid
WHERE
    pg_attribute.attnum > 0
    AND NOT pg_attribute.attisdropped
ORDER BY wanted.name, pg_attribute.attnum
