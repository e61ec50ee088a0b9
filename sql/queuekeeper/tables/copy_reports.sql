-- What each run of the copy did.
-- needs: plans
CREATE TABLE queuekeeper.copy_reports (
    report_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    plan_id text NOT NULL,
    cohorts int[] NOT NULL,
    report jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT copy_reports_pkey PRIMARY KEY (report_id),
    CONSTRAINT copy_reports_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE
);

-- Serves statement copy_reports.
CREATE INDEX copy_reports_plan_id_idx ON queuekeeper.copy_reports (plan_id, report_id);
