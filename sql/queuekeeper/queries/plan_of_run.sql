-- Name the plan that a run asked for.
-- params: run_id
-- rows: at most one: (plan_id)
-- index: plan_runs_pkey
SELECT plan_id
FROM queuekeeper.plan_runs
WHERE run_id = %(run_id)s
