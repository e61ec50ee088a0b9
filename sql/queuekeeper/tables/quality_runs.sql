-- Quality runs: the suites that ran, the profiles that they judged, and the verdict.
CREATE TABLE queuekeeper.quality_runs (
    quality_run_id text NOT NULL,
    mode text NOT NULL,
    suites text[] NOT NULL,
    profile_ids text[] NOT NULL,
    verdict text NOT NULL DEFAULT 'running',
    numbers jsonb NOT NULL DEFAULT '{}', -- totals that the report and the trend show
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    CONSTRAINT quality_runs_pkey PRIMARY KEY (quality_run_id),
    CONSTRAINT quality_runs_verdict_check CHECK (verdict IN ('running', 'passed', 'warned', 'failed'))
);
