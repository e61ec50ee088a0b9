-- Read what a person may change while a run works.
-- params: maintenance_run_id
-- rows: at most one: (paused, throttle_operations_per_s)
-- index: maintenance_runs_pkey, plans_pkey
SELECT
    paused,
    throttle_operations_per_s
FROM queuekeeper.runs
WHERE maintenance_run_id = %(maintenance_run_id)s
