-- Messages done at an instant, for the curve in the report; neighbours become one where a step has many.
-- needs: plans
CREATE TABLE queuekeeper.throughput (
    plan_id text NOT NULL,
    step text NOT NULL,
    at_ms bigint NOT NULL,
    done bigint NOT NULL,
    worked_ms bigint, -- time at work since the row before; null: follows from both rows
    messages bigint, -- done in that time
    CONSTRAINT throughput_pkey PRIMARY KEY (plan_id, step, at_ms),
    CONSTRAINT throughput_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE,
    CONSTRAINT throughput_step_check CHECK (step IN ('copy', 'verify'))
);
