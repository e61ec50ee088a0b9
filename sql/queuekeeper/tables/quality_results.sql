-- Result of one expectation in a quality run.
-- needs: quality_runs
CREATE TABLE queuekeeper.quality_results (
    quality_run_id text NOT NULL,
    suite text NOT NULL,
    expectation int NOT NULL, -- its place in the suite, from 1
    check_id text NOT NULL, -- number of the check, such as Q1
    severity text NOT NULL,
    status text NOT NULL,
    description text NOT NULL,
    unexpected_count bigint NOT NULL DEFAULT 0, -- queues that break it
    observed text NOT NULL DEFAULT '',
    examples jsonb NOT NULL DEFAULT '[]', -- hashed client ids with the checked value: never a payload
    remedy text NOT NULL DEFAULT '', -- DAG that mends it
    remedy_conf jsonb NOT NULL DEFAULT '{}', -- its form, filled in
    place text NOT NULL DEFAULT '', -- servers and prefix of keys that were looked at
    CONSTRAINT quality_results_pkey PRIMARY KEY (quality_run_id, suite, expectation),
    CONSTRAINT quality_results_quality_run_id_fkey FOREIGN KEY (quality_run_id)
    REFERENCES queuekeeper.quality_runs (quality_run_id) ON DELETE CASCADE,
    CONSTRAINT quality_results_status_check CHECK (status IN ('passed', 'failed', 'known', 'broken'))
);
