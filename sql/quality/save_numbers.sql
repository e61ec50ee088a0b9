-- Keep totals of a judgement of quality; its suites may read them.
-- params: quality_run_id, numbers
-- rows: none
-- index: quality_runs_pkey
UPDATE queuekeeper.quality_runs
SET numbers = numbers || %(numbers)s::jsonb
WHERE quality_run_id = %(quality_run_id)s
