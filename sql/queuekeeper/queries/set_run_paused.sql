-- Let a run wait, or go on.
-- params: maintenance_run_id, paused
-- rows: at most one: (maintenance_run_id)
-- index: maintenance_runs_pkey, plans_pkey
UPDATE queuekeeper.runs
SET
    paused = %(paused)s
WHERE maintenance_run_id = %(maintenance_run_id)s
RETURNING maintenance_run_id
