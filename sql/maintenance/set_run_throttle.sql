-- Change how fast a run may work, also while it does.
-- params: maintenance_run_id, operations_per_s
-- rows: at most one: (maintenance_run_id)
-- index: maintenance_runs_pkey
UPDATE queuekeeper.maintenance_runs
SET
    throttle_operations_per_s = %(operations_per_s)s,
    updated_at = clock_timestamp()
WHERE maintenance_run_id = %(maintenance_run_id)s
RETURNING maintenance_run_id
