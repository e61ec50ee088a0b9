-- Ways in which source and target differ, by client; no payloads.
-- needs: plans
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

-- Serves the statements differences and delete_differences.
CREATE INDEX differences_plan_id_cohort_idx ON queuekeeper.differences (plan_id, cohort);
