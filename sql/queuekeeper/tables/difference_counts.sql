-- How many differences of each kind were found.
-- needs: plans
CREATE TABLE queuekeeper.difference_counts (
    plan_id text NOT NULL,
    cohort int NOT NULL,
    kind text NOT NULL,
    found bigint NOT NULL,
    CONSTRAINT difference_counts_pkey PRIMARY KEY (plan_id, cohort, kind),
    CONSTRAINT difference_counts_plan_id_fkey FOREIGN KEY (plan_id)
    REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE
);
