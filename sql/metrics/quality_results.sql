-- Read the results of the last finished quality run of each suite, check by check.
-- params: none
-- rows: (suite, check_id, severity, status, unexpected_queues, finished_s); finished_s in seconds since 1970
-- index: quality_results_pkey
WITH latest AS (
    SELECT DISTINCT ON (suites.suite)
        suites.suite,
        runs.quality_run_id,
        runs.finished_at
    FROM queuekeeper.quality_runs AS runs
    CROSS JOIN LATERAL unnest(runs.suites) AS suites (suite)
    WHERE runs.finished_at IS NOT NULL
    ORDER BY suites.suite ASC, runs.finished_at DESC
)

SELECT
    latest.suite,
    results.check_id,
    results.severity,
    results.status,
    cast(sum(results.unexpected_count) AS bigint) AS unexpected_queues,
    cast(extract(EPOCH FROM max(latest.finished_at)) AS double precision) AS finished_s
FROM latest
INNER JOIN queuekeeper.quality_results AS results
    ON latest.quality_run_id = results.quality_run_id AND latest.suite = results.suite
GROUP BY latest.suite, results.check_id, results.severity, results.status
ORDER BY latest.suite, results.check_id, results.severity, results.status
