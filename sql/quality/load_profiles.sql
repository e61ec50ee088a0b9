-- Read what some profiles were asked for and came to.
-- params: profile_ids
-- rows: (profile_id, store, mode, contents, cohort_count, cohorts, session_limit, default_ttl_s, max_payload_bytes,
-- as_of_ms, queues, messages, started_at, finished_at), the newest first
-- index: profiles_pkey
SELECT
    profile_id,
    store,
    mode,
    contents,
    cohort_count,
    cohorts,
    session_limit,
    default_ttl_s,
    max_payload_bytes,
    as_of_ms,
    queues,
    messages,
    started_at,
    finished_at
FROM queuekeeper.profiles
WHERE profile_id = any(%(profile_ids)s)
ORDER BY started_at DESC, profile_id ASC
