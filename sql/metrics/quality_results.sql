-- Read the results of the last finished quality run of each suite that has read all queues, check by check, and the
-- instant of its last finished run, which may have read a part. Events and partitions are read as a whole in any run.
-- params: none
-- rows: (suite, check_id, severity, status, unexpected_queues, finished_s); of check_id to unexpected_queues null for a
-- suite without such a result; finished_s in seconds since 1970
-- index: quality_results_pkey
WITH runs AS (
    SELECT
        suites.suite,
        runs.quality_run_id,
        runs.finished_at,
        runs.mode = 'full' OR suites.suite IN ('events', 'partitions') AS is_whole
    FROM queuekeeper.quality_runs AS runs
    CROSS JOIN LATERAL unnest(runs.suites) AS suites (suite)
    WHERE runs.finished_at IS NOT NULL
),

latest AS (
    SELECT
        runs.suite,
        max(runs.finished_at) AS finished_at
    FROM runs
    GROUP BY runs.suite
),

whole AS (
    SELECT DISTINCT ON (runs.suite)
        runs.suite,
        runs.quality_run_id
    FROM runs
    WHERE runs.is_whole
    ORDER BY runs.suite ASC, runs.finished_at DESC
)

SELECT
    latest.suite,
    results.check_id,
    results.severity,
    results.status,
    cast(sum(results.unexpected_count) AS bigint) AS unexpected_queues,
    cast(extract(EPOCH FROM max(latest.finished_at)) AS double precision) AS finished_s
FROM latest
LEFT JOIN whole ON latest.suite = whole.suite
LEFT JOIN queuekeeper.quality_results AS results
    ON whole.quality_run_id = results.quality_run_id AND whole.suite = results.suite
GROUP BY latest.suite, results.check_id, results.severity, results.status
ORDER BY latest.suite, results.check_id, results.severity, results.status
