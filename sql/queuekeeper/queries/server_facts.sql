-- Tell which PostgreSQL this is, and how large the database.
-- params: none
-- rows: one: (version, size in bytes)
-- index: none
SELECT
    current_setting('server_version') AS server_version,
    pg_database_size(current_database()) AS size_bytes
