-- Note who agreed to a run; one that is at work already keeps its state, a refused one is left alone.
-- params: maintenance_run_id, approved_by, approved_at
-- rows: at most one: (maintenance_run_id)
-- index: maintenance_runs_pkey, plans_pkey
UPDATE queuekeeper.runs
SET
    state = CASE state WHEN 'planned' THEN 'approved' ELSE state END,
    approved_by = %(approved_by)s,
    approved_at = coalesce(%(approved_at)s::timestamptz, clock_timestamp())
WHERE
    maintenance_run_id = %(maintenance_run_id)s
    AND refused = ''
RETURNING maintenance_run_id
