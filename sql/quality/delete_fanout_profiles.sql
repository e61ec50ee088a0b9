-- Drop the fan-out queues of this judgement, to be read again, and of those beyond the newest.
-- params: quality_run_id, keep_runs
-- rows: none
-- index: fanout_profiles_pkey
DELETE FROM queuekeeper.fanout_profiles
WHERE
    quality_run_id = %(quality_run_id)s
    OR quality_run_id IN (
        SELECT runs.quality_run_id
        FROM queuekeeper.quality_runs AS runs
        WHERE 'fanout' = any(runs.suites)
        ORDER BY runs.started_at DESC
        OFFSET %(keep_runs)s
    )
