-- Read what was applied to schema pgmb.
-- params: none
-- rows: one per migration, and version 0: (version, name, checksum)
-- index: migrations_pkey
SELECT
    version,
    name,
    checksum
FROM pgmb.migrations
ORDER BY version
