-- name: save_profile
-- Record the start of a profile.
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
);

-- name: known_profiles
-- List the profiles that began last, the newest first.
-- params: maximum, store, finished; store is null for both, finished leaves out those that are not complete
-- rows: (profile_id)
-- index: none, a row per profile
SELECT profile_id
FROM queuekeeper.profiles
WHERE
    (%(store)s::text IS NULL OR store = %(store)s)
    AND (finished_at IS NOT NULL OR NOT %(finished)s)
ORDER BY started_at DESC, profile_id ASC
LIMIT %(maximum)s;

-- name: delete_profile
-- Delete a profile with all its rows.
-- params: profile_id
-- rows: none
-- index: profiles_pkey, queue_profiles_pkey, cohort_profiles_pkey, expiry_hours_pkey
DELETE FROM queuekeeper.profiles
WHERE profile_id = %(profile_id)s;

-- name: hold_profile
-- Let others see, as long as this session lasts, that the driver of a profile lives.
-- params: profile_id
-- rows: one: (held), void
-- index: none
SELECT pg_advisory_lock_shared(hashtextextended('queuekeeper.profile/' || %(profile_id)s::text, 0)) AS held;

-- name: delete_abandoned_profiles
-- Delete what is unfinished of a target's profiles whose drivers have ended.
-- params: profile_id, target; profile_id is left alone
-- rows: none
-- index: profiles_pkey, queue_profiles_pkey, cohort_profiles_pkey, expiry_hours_pkey
WITH unfinished AS MATERIALIZED (
    SELECT profile_id
    FROM queuekeeper.profiles
    WHERE finished_at IS NULL AND target = %(target)s AND profile_id <> %(profile_id)s
)

DELETE FROM queuekeeper.profiles
USING unfinished
WHERE
    profiles.profile_id = unfinished.profile_id
    AND pg_try_advisory_xact_lock(hashtextextended('queuekeeper.profile/' || unfinished.profile_id, 0));

-- name: load_queue_profiles
-- Load the rows of queues.
-- params: none; rows follow as CSV in the order of the columns
-- rows: none
-- index: none
COPY queuekeeper.queue_profiles (
    profile_id, client_id, client_hash, cohort, slot, shard, messages, live, dead, over_limit, dead_crowding,
    lowest_serial, highest_serial, serial_gaps, tied_serials, bad_serials, step_errors, bad_packet_ids,
    duplicate_packet_ids, duplicate_messages, foreign_references, orphans, last_packet_id, counter_missing,
    counter_invalid, counter_behind, without_ttl, ttl_too_long, payload_bytes, largest_bytes, oversized, unreadable,
    mismatched, bad_qos, qos_0, bad_packet_types, wrong_type_keys, bad_tag, odd_characters, idle_keys,
    missing_session, earliest_expires_at_ms, latest_expires_at_ms, next_in_use, layout,
    state_faults, in_both_layouts
) FROM STDIN (FORMAT csv);

-- name: delete_queue_profiles
-- Delete the rows of an earlier attempt in cohorts that are read again.
-- params: profile_id, cohorts
-- rows: none
-- index: queue_profiles_pkey
DELETE FROM queuekeeper.queue_profiles
WHERE
    profile_id = %(profile_id)s
    AND cohort = any(%(cohorts)b::int[]);

-- name: load_expiry_hours
-- Load the hours in which messages expire.
-- params: none; rows follow in the order of the columns
-- rows: none
-- index: none
COPY queuekeeper.expiry_hours (profile_id, hour_ms, messages, payload_bytes) FROM STDIN;

-- name: profiled_layouts
-- List the layouts of the sessions of a profile.
-- params: profile_id
-- rows: (layout)
-- index: queue_profiles_pkey
SELECT DISTINCT layout
FROM queuekeeper.queue_profiles
WHERE profile_id = %(profile_id)s
ORDER BY layout;

-- name: expiry_hours
-- Read the hours in which the messages of a profile expire.
-- params: profile_id
-- rows: (hour_ms, messages, payload_bytes); hour 0 holds those without expiry
-- index: expiry_hours_pkey
SELECT
    hour_ms,
    messages,
    payload_bytes
FROM queuekeeper.expiry_hours
WHERE profile_id = %(profile_id)s
ORDER BY hour_ms;

-- name: depth_histogram
-- Count queues by the number of their live messages.
-- params: profile_id, lows; lows are the lower ends of the buckets, ascending
-- rows: (bucket, queues, messages); the bucket is its place among the lower ends, from 1
-- index: queue_profiles_pkey
SELECT
    width_bucket(live, %(lows)b::bigint[]) AS bucket,
    count(*) AS queues,
    sum(live)::bigint AS messages
FROM queuekeeper.queue_profiles
WHERE profile_id = %(profile_id)s
GROUP BY bucket
ORDER BY bucket;

-- name: trend
-- Read the result of each expectation in some quality runs.
-- params: quality_run_ids
-- rows: (quality_run_id, check_id, severity, status, unexpected_count)
-- index: quality_results_pkey
SELECT
    quality_run_id,
    check_id,
    severity,
    status,
    unexpected_count
FROM queuekeeper.quality_results
WHERE quality_run_id = any(%(quality_run_ids)s);
