-- Answers that stand in the audit, so that a task that reads one again adds no second entry.
CREATE TABLE queuekeeper.audit_answers (
    subject text NOT NULL, -- plan or run that was asked about
    answered_at timestamptz NOT NULL,
    action text NOT NULL,
    actor text NOT NULL,
    CONSTRAINT audit_answers_pkey PRIMARY KEY (subject, answered_at, action, actor)
);

-- Which subjects of the audit a run of Airflow has worked on.
CREATE TABLE queuekeeper.audit_runs (
    dag_id text NOT NULL,
    run_id text NOT NULL,
    subject text NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(), -- entries before it are of other runs
    CONSTRAINT audit_runs_pkey PRIMARY KEY (dag_id, run_id, subject)
);
