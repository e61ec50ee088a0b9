-- Sum up the compacted queues that the last finished full quality run has read; a fast one reads a part.
-- params: none
-- rows: none or one: (queues, live, tombstones, lag, size_bytes, oldest_undelivered_s, overdue_s)
-- index: compacted_profiles_pkey
SELECT
    count(*) AS queues,
    cast(sum(live) AS bigint) AS live,
    cast(sum(tombstones) AS bigint) AS tombstones,
    cast(sum(lag) AS bigint) AS lag,
    cast(sum(size_bytes) AS bigint) AS size_bytes,
    coalesce(max(oldest_undelivered_s), 0) AS oldest_undelivered_s,
    max(overdue_s) AS overdue_s
FROM queuekeeper.compacted_profiles
WHERE
    quality_run_id = (
        SELECT runs.quality_run_id
        FROM queuekeeper.quality_runs AS runs
        WHERE runs.finished_at IS NOT NULL AND runs.mode = 'full' AND 'compacted' = any(runs.suites)
        ORDER BY runs.finished_at DESC
        LIMIT 1
    )
HAVING count(*) > 0
