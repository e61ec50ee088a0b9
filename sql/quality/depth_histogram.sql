-- Count queues by how many live messages they hold.
-- params: profile_id, lows; lows are the lower ends of the buckets, ascending
-- rows: (bucket, queues, messages); the bucket is its place among the lower ends, from 1
-- index: queue_profiles_pkey
SELECT
    width_bucket(live, %(lows)s::bigint[]) AS bucket,
    count(*) AS queues,
    sum(live)::bigint AS messages
FROM queuekeeper.queue_profiles
WHERE profile_id = %(profile_id)s
GROUP BY bucket
ORDER BY bucket
