-- Plan that each run of Airflow, or call of the command line, requested.
-- needs: plans
CREATE TABLE queuekeeper.plan_runs (
    run_id text NOT NULL,
    plan_id text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT plan_runs_pkey PRIMARY KEY (run_id),
    CONSTRAINT plan_runs_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE
);
