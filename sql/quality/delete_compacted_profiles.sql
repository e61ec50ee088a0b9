-- Drop the compacted queues of this judgement, to be read again, and of those beyond the newest.
-- params: quality_run_id, keep_runs
-- rows: none
-- index: compacted_profiles_pkey
DELETE FROM queuekeeper.compacted_profiles
WHERE
    quality_run_id = %(quality_run_id)s
    OR quality_run_id IN (
        SELECT runs.quality_run_id
        FROM queuekeeper.quality_runs AS runs
        WHERE 'compacted' = any(runs.suites)
        ORDER BY runs.started_at DESC
        OFFSET %(keep_runs)s
    )
