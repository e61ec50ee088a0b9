-- Read the sums of the last complete full reading of each store of sessions.
-- params: none
-- rows: (store, target, queues, messages, dead, payload_bytes, faulty_queues, finished_s)
-- index: cohort_profiles_pkey
SELECT
    profiles.store,
    profiles.target,
    cast(coalesce(sum(cohorts.queues), 0) AS bigint) AS queues,
    cast(coalesce(sum(cohorts.messages), 0) AS bigint) AS messages,
    cast(coalesce(sum(cohorts.dead), 0) AS bigint) AS dead,
    cast(coalesce(sum(cohorts.payload_bytes), 0) AS bigint) AS payload_bytes,
    cast(coalesce(sum(cohorts.faulty_queues), 0) AS bigint) AS faulty_queues,
    cast(extract(EPOCH FROM max(profiles.finished_at)) AS double precision) AS finished_s
FROM (
    SELECT DISTINCT ON (store, target) *
    FROM queuekeeper.profiles
    WHERE
        finished_at IS NOT NULL
        AND mode = 'full'
        -- Of all queues: not of chosen cohorts, nor of a sample.
        AND cardinality(cohorts) = cohort_count
        AND sample_percent = 100
    ORDER BY store ASC, target ASC, finished_at DESC
) AS profiles
LEFT JOIN queuekeeper.cohort_profiles AS cohorts ON profiles.profile_id = cohorts.profile_id
GROUP BY profiles.store, profiles.target
ORDER BY profiles.store, profiles.target
