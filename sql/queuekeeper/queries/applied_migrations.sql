-- Read the applied migrations in order.
-- params: none
-- rows: (version, name, checksum)
-- index: schema_migrations_pkey
SELECT
    version,
    name,
    checksum
FROM queuekeeper.schema_migrations
ORDER BY version
