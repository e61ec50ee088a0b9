-- Read the judgements of quality that began last, the newest first.
-- params: maximum, finished; finished leaves out those that are still at work or were killed
-- rows: (quality_run_id, mode, suites, profile_ids, verdict, numbers, started_at, finished_at)
-- index: none, a row per run
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
WHERE finished_at IS NOT NULL OR NOT %(finished)s
ORDER BY started_at DESC, quality_run_id DESC
LIMIT %(maximum)s
