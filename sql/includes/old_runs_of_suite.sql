-- From the runs of a suite that are older than the newest ones. Fast runs are counted apart, as each reads a part.
FROM (
    SELECT
        runs.quality_run_id,
        runs.mode,
        row_number() OVER (PARTITION BY runs.mode ORDER BY runs.started_at DESC) AS place
    FROM queuekeeper.quality_runs AS runs
    WHERE %(suite)s = any(runs.suites)
) AS placed
WHERE placed.place > CASE placed.mode WHEN 'fast' THEN %(keep_fast_runs)s ELSE %(keep_runs)s END
