-- A run of a job: its plan, and what it did.
CREATE TABLE queuekeeper.maintenance_runs (
    maintenance_run_id text NOT NULL, -- hash of parameters and what was found
    kind text NOT NULL, -- name of the job, such as expired_reference_cleanup or repair_ttl
    parameters jsonb NOT NULL,
    state text NOT NULL,
    plan jsonb NOT NULL, -- what would be done
    report jsonb, -- what was done
    approved_by text,
    approved_at timestamptz,
    throttle_operations_per_s int, -- may change while it runs; null: none
    paused boolean NOT NULL DEFAULT FALSE,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT maintenance_runs_pkey PRIMARY KEY (maintenance_run_id),
    CONSTRAINT maintenance_runs_state_check CHECK (
        state IN ('planned', 'approved', 'rejected', 'running', 'done', 'stopped', 'failed')
    ),
    CONSTRAINT maintenance_runs_throttle_check CHECK (throttle_operations_per_s > 0)
);
