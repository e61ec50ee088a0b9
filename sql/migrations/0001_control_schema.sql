-- Control schema of a migration from PostgreSQL to Redis: plans, progress, ledger, quarantine, reports.
CREATE SCHEMA queuekeeper;

-- Which migrations were applied to this database, and what their files held.
CREATE TABLE queuekeeper.schema_migrations (
    version int NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL, -- SHA-256 of the file
    applied_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT schema_migrations_pkey PRIMARY KEY (version)
);

-- What a migration will do, and where it stands.
CREATE TABLE queuekeeper.plans (
    plan_id text NOT NULL, -- hash over parameters, source and code
    parameters jsonb NOT NULL,
    source_fingerprint text NOT NULL,
    code_version text NOT NULL,
    as_of_ms bigint NOT NULL, -- instant at which rows were judged live or expired
    chosen int[] NOT NULL, -- cohorts to copy
    state text NOT NULL,
    state_reason text NOT NULL DEFAULT '',
    throttle_messages_per_s int, -- may change while a copy runs; null: none
    approved_by text,
    approved_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    planned_at timestamptz NOT NULL DEFAULT clock_timestamp(), -- when somebody last asked for it
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT plans_pkey PRIMARY KEY (plan_id),
    CONSTRAINT plans_state_check CHECK (
        state IN ('planned', 'refused', 'approved', 'copying', 'copied', 'verified', 'failed')
    ),
    CONSTRAINT plans_throttle_check CHECK (throttle_messages_per_s > 0)
);

-- Which Airflow run, or call of the command line, asked for which plan.
CREATE TABLE queuekeeper.plan_runs (
    run_id text NOT NULL,
    plan_id text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT plan_runs_pkey PRIMARY KEY (run_id),
    CONSTRAINT plan_runs_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE
);

-- What the plan found in each range of hash slots, and how far that range has come.
CREATE TABLE queuekeeper.cohorts (
    plan_id text NOT NULL,
    cohort int NOT NULL,
    slot_first int NOT NULL,
    slot_last int NOT NULL, -- included
    shard text NOT NULL, -- host:port that served the range when the plan was made
    sessions bigint NOT NULL,
    clients bigint NOT NULL,
    messages bigint NOT NULL, -- = to_copy + expired + trimmed + quarantined
    payload_bytes bigint NOT NULL,
    to_copy bigint NOT NULL,
    expired bigint NOT NULL,
    trimmed bigint NOT NULL,
    quarantined bigint NOT NULL,
    quarantined_by_reason jsonb NOT NULL, -- session rows too
    forecast_bytes bigint NOT NULL,
    longest_queue bigint NOT NULL,
    state text NOT NULL DEFAULT 'planned',
    CONSTRAINT cohorts_pkey PRIMARY KEY (plan_id, cohort),
    CONSTRAINT cohorts_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE,
    CONSTRAINT cohorts_state_check CHECK (state IN ('planned', 'copying', 'copied', 'verified', 'failed'))
);

-- How far each part of a step has come; a part is what one task works on.
CREATE TABLE queuekeeper.progress (
    plan_id text NOT NULL,
    step text NOT NULL,
    part text NOT NULL,
    done bigint NOT NULL,
    total bigint NOT NULL,
    updated_at_ms bigint NOT NULL,
    CONSTRAINT progress_pkey PRIMARY KEY (plan_id, step, part),
    CONSTRAINT progress_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE,
    CONSTRAINT progress_step_check CHECK (step IN ('copy', 'verify'))
);

-- Messages done at an instant, for the curve in the report.
CREATE TABLE queuekeeper.throughput (
    plan_id text NOT NULL,
    step text NOT NULL,
    at_ms bigint NOT NULL,
    done bigint NOT NULL,
    CONSTRAINT throughput_pkey PRIMARY KEY (plan_id, step, at_ms),
    CONSTRAINT throughput_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE,
    CONSTRAINT throughput_step_check CHECK (step IN ('copy', 'verify'))
);

-- What each run of the copy did.
CREATE TABLE queuekeeper.copy_reports (
    report_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    plan_id text NOT NULL,
    cohorts int[] NOT NULL,
    report jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT copy_reports_pkey PRIMARY KEY (report_id),
    CONSTRAINT copy_reports_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE
);

-- Serves copy_reports.sql.
CREATE INDEX copy_reports_plan_id_idx ON queuekeeper.copy_reports (plan_id, report_id);

-- Where every row of a cohort went, as found by reading both stores again.
CREATE TABLE queuekeeper.ledger (
    plan_id text NOT NULL,
    cohort int NOT NULL,
    rows_seen bigint NOT NULL,
    copied bigint NOT NULL,
    expired bigint NOT NULL,
    trimmed bigint NOT NULL,
    superseded bigint NOT NULL,
    quarantined bigint NOT NULL,
    unaccounted bigint NOT NULL GENERATED ALWAYS AS (
        rows_seen - (copied + expired + trimmed + superseded + quarantined)
    ) STORED, -- anything but 0 is a failed migration
    sessions_seen bigint NOT NULL,
    sessions_copied bigint NOT NULL,
    differences bigint NOT NULL,
    digest text NOT NULL,
    verified_at_ms bigint NOT NULL,
    CONSTRAINT ledger_pkey PRIMARY KEY (plan_id, cohort),
    CONSTRAINT ledger_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE
);

-- Every way in which source and target differ; no payloads.
CREATE TABLE queuekeeper.differences (
    plan_id text NOT NULL,
    cohort int NOT NULL,
    client_id text NOT NULL,
    serial_number bigint,
    kind text NOT NULL,
    expected text NOT NULL,
    found text NOT NULL,
    CONSTRAINT differences_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE
);

-- Serves differences.sql and delete_differences.sql.
CREATE INDEX differences_plan_id_cohort_idx ON queuekeeper.differences (plan_id, cohort);

-- Rows that cannot be copied as they are, whole, with the reason; they wait for repair and replay.
CREATE TABLE queuekeeper.quarantine (
    quarantine_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    plan_id text NOT NULL,
    cohort int NOT NULL,
    kind text NOT NULL, -- message: a row of device_publish_msg; session: one of device_session_ctx
    reason text NOT NULL,
    detail text NOT NULL,
    client_id text NOT NULL,
    serial_number bigint, -- null for a session
    topic text,
    time bigint,
    packet_id bigint,
    packet_type text,
    qos int,
    payload bytea,
    user_properties text,
    retain boolean,
    msg_expiry_interval int,
    payload_format_indicator int,
    content_type text,
    response_topic text,
    correlation_data bytea,
    last_packet_id bigint, -- of a session
    status text NOT NULL DEFAULT 'open',
    assigned_packet_id int, -- under which a message was replayed
    replayed_at timestamptz,
    quarantined_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT quarantine_pkey PRIMARY KEY (quarantine_id),
    CONSTRAINT quarantine_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE,
    CONSTRAINT quarantine_kind_check CHECK (kind IN ('message', 'session')),
    CONSTRAINT quarantine_serial_number_check CHECK (kind = 'session' OR serial_number IS NOT NULL),
    CONSTRAINT quarantine_status_check CHECK (status IN ('open', 'replayed')),
    CONSTRAINT quarantine_replayed_check CHECK ((status = 'replayed') = (replayed_at IS NOT NULL))
);

-- One entry per source row. Two indexes, since PostgreSQL 14 holds two nulls to be different.
-- Serves quarantined_rows.sql.
CREATE UNIQUE INDEX quarantine_message_key ON queuekeeper.quarantine (plan_id, client_id, serial_number)
WHERE kind = 'message';

CREATE UNIQUE INDEX quarantine_session_key ON queuekeeper.quarantine (plan_id, client_id)
WHERE kind = 'session';

-- Serves delete_open_quarantine.sql and replayed_keys.sql.
CREATE INDEX quarantine_plan_id_cohort_idx ON queuekeeper.quarantine (plan_id, cohort, status);

-- Reports written to files.
CREATE TABLE queuekeeper.reports (
    report_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    plan_id text NOT NULL,
    html_path text NOT NULL,
    json_path text NOT NULL,
    sha256 text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT reports_pkey PRIMARY KEY (report_id),
    CONSTRAINT reports_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE
);

-- Serves reports.sql.
CREATE INDEX reports_plan_id_idx ON queuekeeper.reports (plan_id, report_id);
