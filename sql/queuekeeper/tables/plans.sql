-- Plans of migrations, and their states.
CREATE TABLE queuekeeper.plans (
    plan_id text NOT NULL, -- hash over parameters, source and code
    parameters jsonb NOT NULL,
    source_fingerprint text NOT NULL,
    code_version text NOT NULL,
    as_of_ms bigint NOT NULL, -- instant at which rows were judged live or expired
    chosen int[] NOT NULL, -- cohorts to copy
    state text NOT NULL,
    state_reason text NOT NULL DEFAULT '',
    throttle_messages_per_s int, -- may change while it works; online: clients, once these move; null: none
    approved_by text,
    approved_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    planned_at timestamptz NOT NULL DEFAULT clock_timestamp(), -- when somebody last asked for it
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    paused boolean NOT NULL DEFAULT FALSE,
    target_clustered boolean, -- whether it was made for a cluster; null: by an earlier release
    CONSTRAINT plans_pkey PRIMARY KEY (plan_id),
    CONSTRAINT plans_state_check CHECK (
        state IN ('planned', 'refused', 'rejected', 'approved', 'copying', 'copied', 'verified', 'failed')
    ),
    CONSTRAINT plans_throttle_check CHECK (throttle_messages_per_s > 0)
);
