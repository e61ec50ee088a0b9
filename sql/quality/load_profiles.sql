-- Read the parameters and totals of some profiles.
-- params: profile_ids
-- rows: (profile_id, store, target, mode, contents, cohort_count, cohorts, sample_percent, session_limit,
-- default_ttl_s, max_payload_bytes, as_of_ms, queues, messages, started_at, finished_at, is_forgotten), the newest
-- first; is_forgotten: it read queues, and their rows have been dropped since
-- index: profiles_pkey, queue_profiles_pkey
SELECT
    profile_id,
    store,
    target,
    mode,
    contents,
    cohort_count,
    cohorts,
    sample_percent,
    session_limit,
    default_ttl_s,
    max_payload_bytes,
    as_of_ms,
    queues,
    messages,
    started_at,
    finished_at,
    coalesce(queues > 0, FALSE) AND NOT EXISTS (
        SELECT FROM queuekeeper.queue_profiles
        WHERE queue_profiles.profile_id = profiles.profile_id
    ) AS is_forgotten
FROM queuekeeper.profiles
WHERE profile_id = any(%(profile_ids)s)
ORDER BY started_at DESC, profile_id ASC
