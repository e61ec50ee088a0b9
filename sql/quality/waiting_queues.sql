-- Return how many messages wait in compacted and fan-out queues, and for how long, by a quality run.
-- params: quality_run_id
-- rows: (kind, queues, messages, unit of the age, age in seconds)
-- index: compacted_profiles_pkey, fanout_profiles_pkey
SELECT
    'compacted' AS kind,
    count(*) AS queues,
    coalesce(sum(lag), 0)::bigint AS messages,
    'oldest message that was not delivered' AS age_words,
    max(oldest_undelivered_s) AS age_s
FROM queuekeeper.compacted_profiles
WHERE quality_run_id = %(quality_run_id)s
UNION ALL
SELECT
    'fan-out' AS kind,
    count(DISTINCT queue) AS queues,
    coalesce(sum(messages) FILTER (WHERE consumer <> ''), 0)::bigint AS messages,
    'longest that messages wait for a consumer that is away' AS age_words,
    nullif(max(forsaken_s), 0) AS age_s
FROM queuekeeper.fanout_profiles
WHERE quality_run_id = %(quality_run_id)s
