-- Store a new plan; the same plan made again stays as it is.
-- params: maintenance_run_id, kind, parameters, plan, throttle_operations_per_s
-- rows: none
-- index: maintenance_runs_pkey
INSERT INTO queuekeeper.maintenance_runs (
    maintenance_run_id, kind, parameters, state, plan, throttle_operations_per_s
)
VALUES (
    %(maintenance_run_id)s, %(kind)s, %(parameters)s, 'planned', %(plan)s, %(throttle_operations_per_s)s
)
ON CONFLICT (maintenance_run_id) DO NOTHING
