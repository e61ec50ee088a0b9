-- Sum up the fan-out queues that the last finished full quality run has read; a fast one reads a part.
-- params: none
-- rows: none or one: (queues, consumers, stored, waiting, dead_letters, forsaken_s)
-- index: fanout_profiles_pkey
SELECT
    count(*) FILTER (WHERE consumer = '') AS queues,
    count(*) FILTER (WHERE consumer <> '') AS consumers,
    cast(coalesce(sum(messages) FILTER (WHERE consumer = ''), 0) AS bigint) AS stored,
    cast(coalesce(sum(messages) FILTER (WHERE consumer <> ''), 0) AS bigint) AS waiting,
    cast(coalesce(sum(dead_letters), 0) AS bigint) AS dead_letters,
    max(forsaken_s) AS forsaken_s
FROM queuekeeper.fanout_profiles
WHERE
    quality_run_id = (
        SELECT runs.quality_run_id
        FROM queuekeeper.quality_runs AS runs
        WHERE runs.finished_at IS NOT NULL AND runs.mode = 'full' AND 'fanout' = any(runs.suites)
        ORDER BY runs.finished_at DESC
        LIMIT 1
    )
HAVING count(*) > 0
