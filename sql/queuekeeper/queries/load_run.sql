-- Read one run.
-- params: maintenance_run_id
-- rows: at most one: all columns of runs
-- index: maintenance_runs_pkey, plans_pkey
SELECT
    maintenance_run_id,
    kind,
    parameters,
    state,
    refused,
    plan,
    report,
    approved_by,
    approved_at,
    throttle_operations_per_s,
    paused,
    created_at,
    updated_at
FROM queuekeeper.runs
WHERE maintenance_run_id = %(maintenance_run_id)s
