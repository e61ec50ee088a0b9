-- Note that a migration was applied to schema pgmb.
-- params: version, name, checksum
-- rows: none
-- index: migrations_pkey
INSERT INTO pgmb.migrations (version, name, checksum)
VALUES (%(version)s, %(name)s, %(checksum)s)
