-- List runs, latest first.
-- params: kinds, maximum; kinds null: of every kind
-- rows: (maintenance_run_id)
-- index: none, runs are few
SELECT maintenance_run_id
FROM queuekeeper.runs
WHERE
    %(kinds)s::text[] IS NULL
    OR kind = any(%(kinds)s::text[])
ORDER BY created_at DESC, maintenance_run_id ASC
LIMIT %(maximum)s
