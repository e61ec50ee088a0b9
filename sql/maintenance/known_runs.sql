-- List runs, latest first.
-- params: kind, maximum; kind null: of every kind
-- rows: (maintenance_run_id)
-- index: none, the table is small
SELECT maintenance_run_id
FROM queuekeeper.maintenance_runs
WHERE
    %(kind)s::text IS NULL
    OR kind = %(kind)s
ORDER BY created_at DESC, maintenance_run_id ASC
LIMIT %(maximum)s
