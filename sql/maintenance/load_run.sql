-- Read one run.
-- params: maintenance_run_id
-- rows: at most one: all columns of maintenance_runs
-- index: maintenance_runs_pkey
SELECT
    maintenance_run_id,
    kind,
    parameters,
    state,
    plan,
    report,
    approved_by,
    approved_at,
    throttle_operations_per_s,
    paused,
    created_at,
    updated_at
FROM queuekeeper.maintenance_runs
WHERE maintenance_run_id = %(maintenance_run_id)s
