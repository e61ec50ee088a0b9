-- name: analyze_source
-- Analyze the vendor's tables.
-- params: none
-- rows: none
-- index: none
ANALYZE device_publish_msg, device_session_ctx;

-- name: empty_source
-- Empty the vendor's tables; only a sample asks for this.
-- params: none
-- rows: none
-- index: none
TRUNCATE device_publish_msg, device_session_ctx;

-- name: source_blocks
-- Return the number of blocks of the vendor's messages.
-- params: none
-- rows: one: (blocks)
-- index: none
SELECT pg_relation_size('device_publish_msg') / current_setting('block_size')::int AS blocks;

-- name: source_columns
-- List the columns of the vendor's tables.
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
ORDER BY wanted.name, pg_attribute.attnum;

-- name: source_encoding
-- Return the encoding of the database.
-- params: none
-- rows: one: (encoding)
-- index: none
SELECT current_setting('server_encoding') AS encoding;

-- name: source_has_rows
-- Return whether the vendor's tables hold rows.
-- params: none
-- rows: one: (boolean)
-- index: none
SELECT
    EXISTS (SELECT 1 AS found FROM device_publish_msg)
    OR EXISTS (SELECT 1 AS found FROM device_session_ctx) AS has_rows;
