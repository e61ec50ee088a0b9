-- Messages done at an instant, for the curve in the report.
-- needs: plans
CREATE TABLE queuekeeper.throughput (
    plan_id text NOT NULL,
    step text NOT NULL,
    at_ms bigint NOT NULL,
    done bigint NOT NULL,
    CONSTRAINT throughput_pkey PRIMARY KEY (plan_id, step, at_ms),
    CONSTRAINT throughput_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE,
    CONSTRAINT throughput_step_check CHECK (step IN ('copy', 'verify'))
);
