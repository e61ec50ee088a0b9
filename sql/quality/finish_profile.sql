-- Mark a profile as complete.
-- params: profile_id
-- rows: one: (queues, messages, live, faulty_queues)
-- index: profiles_pkey, cohort_profiles_pkey
WITH sums AS (
    SELECT
        coalesce(sum(queues), 0)::bigint AS queues,
        coalesce(sum(messages), 0)::bigint AS messages,
        coalesce(sum(live), 0)::bigint AS live,
        coalesce(sum(faulty_queues), 0)::bigint AS faulty_queues
    FROM queuekeeper.cohort_profiles
    WHERE profile_id = %(profile_id)s
)

UPDATE queuekeeper.profiles
SET
    queues = sums.queues,
    messages = sums.messages,
    finished_at = clock_timestamp()
FROM sums
WHERE profiles.profile_id = %(profile_id)s
RETURNING sums.queues, sums.messages, sums.live, sums.faulty_queues
