-- Put a profile on record as begun.
-- params: profile_id, store, target, mode, contents, cohort_count, cohorts, sample_percent, session_limit,
-- default_ttl_s, max_payload_bytes, as_of_ms
-- rows: none
-- index: profiles_pkey
INSERT INTO queuekeeper.profiles (
    profile_id, store, target, mode, contents, cohort_count, cohorts, sample_percent, session_limit, default_ttl_s,
    max_payload_bytes, as_of_ms
)
VALUES (
    %(profile_id)s, %(store)s, %(target)s, %(mode)s, %(contents)s, %(cohort_count)s, %(cohorts)s, %(sample_percent)s,
    %(session_limit)s, %(default_ttl_s)s, %(max_payload_bytes)s, %(as_of_ms)s
)
