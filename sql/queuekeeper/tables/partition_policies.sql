-- Policies by which tables of this database are partitioned.
CREATE TABLE queuekeeper.partition_policies (
    table_name text NOT NULL, -- schema.name
    step text NOT NULL, -- spans are a number and a unit, or a number of keys
    ahead text NOT NULL,
    retention text, -- null: keys are kept for ever
    far_future text, -- null: as far as ahead
    lowest_needed_sql text, -- answers the lowest key that a consumer still needs
    archive boolean NOT NULL,
    quarantine_schema text NOT NULL,
    quarantine_days int NOT NULL,
    blocking_detach boolean NOT NULL,
    storage jsonb NOT NULL, -- storage parameters of new partitions
    lock_timeout_ms int NOT NULL,
    deadline_s int NOT NULL,
    at_most int NOT NULL, -- partitions that one plan creates
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    register_archives boolean NOT NULL DEFAULT FALSE, -- in the Iceberg catalog, by maintenance
    CONSTRAINT partition_policies_pkey PRIMARY KEY (table_name)
);
