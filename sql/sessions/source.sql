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
-- rows: (table, column, type, whether rows may be without it)
-- index: none
SELECT
    wanted.name AS table_name,
    pg_attribute.attname AS column_name,
    format_type(pg_attribute.atttypid, NULL) AS type_name,
    NOT pg_attribute.attnotnull AS may_lack
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

-- name: source_gaps
-- Count the messages and sessions without what each of them has in the vendor's own tables.
-- params: none
-- rows: (table, column, what mends it, row_count)
-- index: none
SELECT
    'device_publish_msg' AS table_name,
    gap.column_name,
    gap.remedy,
    count(*) AS row_count
FROM device_publish_msg AS entry
CROSS JOIN
    LATERAL (
        VALUES
        ('client_id', 'DELETE FROM device_publish_msg WHERE client_id IS NULL', entry.client_id IS NULL),
        ('serial_number', 'DELETE FROM device_publish_msg WHERE serial_number IS NULL', entry.serial_number IS NULL),
        ('payload', 'UPDATE device_publish_msg SET payload = '''' WHERE payload IS NULL', entry.payload IS NULL)
    ) AS gap (column_name, remedy, is_there)
WHERE gap.is_there
GROUP BY gap.column_name, gap.remedy
UNION ALL
SELECT
    'device_session_ctx' AS table_name,
    'client_id' AS column_name,
    'DELETE FROM device_session_ctx WHERE client_id IS NULL' AS remedy,
    count(*) AS row_count
FROM device_session_ctx AS entry
WHERE entry.client_id IS NULL
HAVING count(*) > 0
ORDER BY table_name, column_name;

-- name: source_has_rows
-- Return whether the vendor's tables hold rows.
-- params: none
-- rows: one: (boolean)
-- index: none
SELECT
    EXISTS (SELECT 1 AS found FROM device_publish_msg)
    OR EXISTS (SELECT 1 AS found FROM device_session_ctx) AS has_rows;
