-- Return a profile's sums by cohort.
-- params: profile_id
-- rows: (cohort, queues, messages, dead, payload_bytes, faulty_queues)
-- index: cohort_profiles_pkey
SELECT
    cohort,
    queues,
    messages,
    dead,
    payload_bytes,
    faulty_queues
FROM queuekeeper.cohort_profiles
WHERE profile_id = %(profile_id)s
ORDER BY cohort ASC
