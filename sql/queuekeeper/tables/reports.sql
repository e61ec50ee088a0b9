-- Reports written to files.
-- needs: plans
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

-- Serves statement reports.
CREATE INDEX reports_plan_id_idx ON queuekeeper.reports (plan_id, report_id);
