-- Differences are counted by kind before only the first ones are listed.
CREATE TABLE queuekeeper.difference_counts (
    plan_id text NOT NULL,
    cohort int NOT NULL,
    kind text NOT NULL,
    found bigint NOT NULL,
    CONSTRAINT difference_counts_pkey PRIMARY KEY (plan_id, cohort, kind),
    CONSTRAINT difference_counts_plan_id_fkey FOREIGN KEY (plan_id)
    REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE
);

INSERT INTO queuekeeper.difference_counts (plan_id, cohort, kind, found)
SELECT
    plan_id,
    cohort,
    kind,
    count(*) AS found
FROM queuekeeper.differences
GROUP BY plan_id, cohort, kind;
