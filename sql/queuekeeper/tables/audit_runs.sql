-- Which subjects of the audit a run of Airflow has worked on.
CREATE TABLE queuekeeper.audit_runs (
    dag_id text NOT NULL,
    run_id text NOT NULL,
    subject text NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(), -- entries before it are of other runs
    CONSTRAINT audit_runs_pkey PRIMARY KEY (dag_id, run_id, subject)
);
