-- How tables of this database are to be partitioned.
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
    CONSTRAINT partition_policies_pkey PRIMARY KEY (table_name)
);

-- Partitions that were taken out of their tables: where they are, until when, and the way back.
CREATE TABLE queuekeeper.retired_partitions (
    retired_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    table_name text NOT NULL, -- schema.name of the table it was part of
    table_oid oid NOT NULL,
    partition_oid oid NOT NULL,
    schema_name text NOT NULL, -- where it was, and goes back to
    partition_name text NOT NULL,
    quarantine_schema text NOT NULL,
    lower_bound text, -- null: MINVALUE
    upper_bound text, -- null: MAXVALUE
    drained_default boolean NOT NULL, -- a DEFAULT partition whose rows were copied to partitions of their own
    state text NOT NULL,
    size_bytes bigint NOT NULL,
    reason text NOT NULL,
    retired_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    drop_after timestamptz NOT NULL,
    archived_at timestamptz, -- when its archive was verified
    archive jsonb, -- manifest of the archive
    ended_at timestamptz, -- when it was dropped or attached again
    CONSTRAINT retired_partitions_pkey PRIMARY KEY (retired_id),
    CONSTRAINT retired_partitions_state_check CHECK (
        state IN ('detaching', 'quarantined', 'reattached', 'dropped', 'restoring')
    )
);
CREATE INDEX retired_partitions_table_name_idx ON queuekeeper.retired_partitions (table_name, state);

-- Successful maintenance of partitions, and how far the data had come: the rate of keys that no clock moves.
CREATE TABLE queuekeeper.partition_observations (
    table_name text NOT NULL, -- schema.name
    observed_at_ms bigint NOT NULL,
    highest_key text, -- null: the table was empty
    CONSTRAINT partition_observations_pkey PRIMARY KEY (table_name, observed_at_ms)
);
