-- Remember which plan a run asked for; a repeated run may come to another plan.
-- params: run_id, plan_id
-- rows: none
-- index: plan_runs_pkey
INSERT INTO queuekeeper.plan_runs (run_id, plan_id)
VALUES (%(run_id)s, %(plan_id)s)
ON CONFLICT (run_id) DO UPDATE
    SET
        plan_id = excluded.plan_id,
        created_at = clock_timestamp()
