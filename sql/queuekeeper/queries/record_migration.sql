-- Remember that a migration was applied.
-- params: version, name, checksum
-- rows: none
-- index: schema_migrations_pkey
INSERT INTO queuekeeper.schema_migrations (version, name, checksum)
VALUES (%(version)s, %(name)s, %(checksum)s)
