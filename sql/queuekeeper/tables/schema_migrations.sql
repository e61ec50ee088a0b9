-- Migrations that were applied to this database, with checksums of their files.
CREATE TABLE queuekeeper.schema_migrations (
    version int NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL, -- SHA-256 of the file
    applied_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT schema_migrations_pkey PRIMARY KEY (version)
);
