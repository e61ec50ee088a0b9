-- name: save_cohort
-- Store what the plan found in one cohort.
-- params: plan_id, cohort, slot_first, slot_last, shard, sessions, clients, messages, payload_bytes, to_copy,
-- expired, trimmed, quarantined, quarantined_by_reason, forecast_bytes, longest_queue
-- rows: none
-- index: cohorts_pkey
INSERT INTO queuekeeper.cohorts (
    plan_id, cohort, slot_first, slot_last, shard, sessions, clients, messages, payload_bytes, to_copy, expired,
    trimmed, quarantined, quarantined_by_reason, forecast_bytes, longest_queue
)
VALUES (
    %(plan_id)s, %(cohort)s, %(slot_first)s, %(slot_last)s, %(shard)s, %(sessions)s, %(clients)s, %(messages)s,
    %(payload_bytes)s, %(to_copy)s, %(expired)s, %(trimmed)s, %(quarantined)s, %(quarantined_by_reason)s,
    %(forecast_bytes)s, %(longest_queue)s
);

-- name: cohort_states
-- Return the state of each cohort.
-- params: plan_id
-- rows: (cohort, state)
-- index: cohorts_pkey
SELECT
    cohort,
    state
FROM queuekeeper.cohorts
WHERE plan_id = %(plan_id)s
ORDER BY cohort;

-- name: set_cohort_state
-- Move cohorts of a plan to another state.
-- params: plan_id, cohorts, state
-- rows: none
-- index: cohorts_pkey
UPDATE queuekeeper.cohorts
SET state = %(state)s
WHERE
    plan_id = %(plan_id)s
    AND cohort = any(%(cohorts)b::int[]);

-- name: delete_cohorts
-- Delete the cohorts of a plan that is planned again.
-- params: plan_id
-- rows: none
-- index: cohorts_pkey
DELETE FROM queuekeeper.cohorts
WHERE plan_id = %(plan_id)s;

-- name: lock_cohorts
-- Try to lock cohorts of a plan for this session, without waiting.
-- params: class, cohorts
-- rows: (cohort, whether this session holds it now)
-- index: none
SELECT
    cohort,
    pg_try_advisory_lock(%(class)s::int, cohort) AS locked
FROM unnest(%(cohorts)b::int[]) AS wanted (cohort);

-- name: unlock_cohorts
-- Release cohorts that this session holds.
-- params: class, cohorts
-- rows: one per cohort, without meaning
-- index: none
SELECT pg_advisory_unlock(%(class)s::int, cohort) AS unlocked
FROM unnest(%(cohorts)b::int[]) AS held (cohort);

-- name: cohort_lock_holder
-- Find a session that holds one of the given cohorts of a plan.
-- params: class, cohorts
-- rows: at most one: (backend pid, start of its session or null)
-- index: none
SELECT
    locks.pid,
    activity.backend_start
FROM pg_catalog.pg_locks AS locks
INNER JOIN pg_catalog.pg_database AS databases ON locks.database = databases.oid
LEFT JOIN pg_catalog.pg_stat_activity AS activity ON locks.pid = activity.pid
WHERE
    locks.locktype = 'advisory'
    AND locks.granted
    AND databases.datname = current_database()
    AND locks.classid = %(class)s::int::oid
    AND locks.objid = any(%(cohorts)b::int[]::oid[])
    AND locks.objsubid = 2
    AND locks.pid <> pg_backend_pid()
ORDER BY activity.backend_start NULLS LAST, locks.pid
LIMIT 1;
