-- Partitions that were taken out of their tables: where they are, until when, and how to restore them.
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
