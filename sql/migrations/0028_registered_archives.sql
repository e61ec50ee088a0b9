-- A policy may ask that maintenance names archives in the Iceberg catalog.
ALTER TABLE queuekeeper.partition_policies
ADD COLUMN register_archives boolean NOT NULL DEFAULT FALSE;
