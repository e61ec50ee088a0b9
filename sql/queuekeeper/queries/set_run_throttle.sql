-- Change how fast a run may work, also while it does.
-- params: maintenance_run_id, operations_per_s
-- rows: at most one: (maintenance_run_id)
-- index: maintenance_runs_pkey, plans_pkey
UPDATE queuekeeper.runs
SET
    throttle_operations_per_s = %(operations_per_s)s
WHERE maintenance_run_id = %(maintenance_run_id)s
RETURNING maintenance_run_id
