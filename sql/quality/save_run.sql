-- Begin a judgement of quality, or begin it again.
-- params: quality_run_id, mode, suites, profile_ids, started_at
-- rows: none
-- index: quality_runs_pkey
INSERT INTO queuekeeper.quality_runs (quality_run_id, mode, suites, profile_ids, started_at)
VALUES (%(quality_run_id)s, %(mode)s, %(suites)s, %(profile_ids)s, %(started_at)s)
ON CONFLICT (quality_run_id) DO UPDATE
    SET
        mode = excluded.mode,
        suites = excluded.suites,
        profile_ids = excluded.profile_ids,
        verdict = 'running',
        numbers = '{}',
        started_at = excluded.started_at,
        finished_at = NULL
