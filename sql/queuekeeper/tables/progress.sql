-- Progress of each part of a step; a part is the work of one task.
-- needs: plans
CREATE TABLE queuekeeper.progress (
    plan_id text NOT NULL,
    step text NOT NULL,
    part text NOT NULL,
    done bigint NOT NULL,
    total bigint NOT NULL,
    updated_at_ms bigint NOT NULL,
    CONSTRAINT progress_pkey PRIMARY KEY (plan_id, step, part),
    CONSTRAINT progress_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE,
    CONSTRAINT progress_step_check CHECK (step IN ('copy', 'verify'))
);
