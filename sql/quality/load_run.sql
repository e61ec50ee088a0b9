-- Read a judgement of quality.
-- params: quality_run_id
-- rows: at most one: (quality_run_id, mode, suites, profile_ids, verdict, numbers, started_at, finished_at)
-- index: quality_runs_pkey
SELECT
    quality_run_id,
    mode,
    suites,
    profile_ids,
    verdict,
    numbers,
    started_at,
    finished_at
FROM queuekeeper.quality_runs
WHERE quality_run_id = %(quality_run_id)s
