-- Find compacted and fan-out queues as the newest quality run read them, by name or by the hash that reports show.
-- params: text
-- rows: (kind, messages that wait)
-- index: compacted_profiles_pkey, fanout_profiles_pkey
WITH newest AS (
    SELECT quality_run_id
    FROM queuekeeper.quality_runs
    WHERE finished_at IS NOT NULL
    ORDER BY started_at DESC
    LIMIT 1
)

SELECT
    'compacted' AS kind,
    compacted_profiles.lag AS messages
FROM queuekeeper.compacted_profiles
INNER JOIN newest ON compacted_profiles.quality_run_id = newest.quality_run_id
WHERE %(text)s::text IN (compacted_profiles.client_id, compacted_profiles.client_hash)
UNION ALL
SELECT
    'fan-out' AS kind,
    coalesce(sum(fanout_profiles.messages) FILTER (WHERE fanout_profiles.consumer <> ''), 0)::bigint AS messages
FROM queuekeeper.fanout_profiles
INNER JOIN newest ON fanout_profiles.quality_run_id = newest.quality_run_id
WHERE %(text)s::text IN (fanout_profiles.queue, fanout_profiles.client_hash)
GROUP BY fanout_profiles.queue
