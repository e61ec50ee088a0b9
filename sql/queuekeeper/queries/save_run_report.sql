-- Keep what a run did.
-- params: maintenance_run_id, report
-- rows: at most one: (maintenance_run_id)
-- index: maintenance_runs_pkey
UPDATE queuekeeper.maintenance_runs
SET
    report = %(report)s,
    updated_at = clock_timestamp()
WHERE maintenance_run_id = %(maintenance_run_id)s
RETURNING maintenance_run_id
