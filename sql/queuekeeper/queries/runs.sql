-- name: save_run
-- Store a new plan; the same plan made again stays as it is.
-- params: maintenance_run_id, kind, parameters, plan, throttle_operations_per_s
-- rows: none
-- index: maintenance_runs_pkey
INSERT INTO queuekeeper.maintenance_runs (
    maintenance_run_id, kind, parameters, state, plan, throttle_operations_per_s
)
VALUES (
    %(maintenance_run_id)s, %(kind)s, %(parameters)s, 'planned', %(plan)s, %(throttle_operations_per_s)s
)
ON CONFLICT (maintenance_run_id) DO NOTHING;

-- name: load_runs
-- Read runs, latest first.
-- params: maintenance_run_ids
-- rows: all columns of runs but kept_in
-- index: maintenance_runs_pkey, plans_pkey
SELECT
    maintenance_run_id,
    kind,
    parameters,
    state,
    refused,
    plan,
    report,
    approved_by,
    approved_at,
    throttle_operations_per_s,
    paused,
    created_at,
    updated_at
FROM queuekeeper.runs
WHERE maintenance_run_id = any(%(maintenance_run_ids)b::text[])
ORDER BY created_at DESC, maintenance_run_id ASC;

-- name: known_runs
-- List runs, latest first.
-- params: kinds, state, maximum; kinds null: of every kind; state null: in any state
-- rows: (maintenance_run_id)
-- index: none, runs are few
SELECT maintenance_run_id
FROM queuekeeper.runs
WHERE
    (%(kinds)b::text[] IS NULL OR kind = any(%(kinds)b::text[]))
    AND (%(state)s::text IS NULL OR state = %(state)s)
ORDER BY created_at DESC, maintenance_run_id ASC
LIMIT %(maximum)s;

-- name: count_runs
-- Count the runs in each state.
-- params: kinds; null: of every kind
-- rows: (state, runs), of states in which there are runs
-- index: none, runs are few
SELECT
    state,
    count(*) AS runs
FROM queuekeeper.runs
WHERE
    %(kinds)b::text[] IS NULL
    OR kind = any(%(kinds)b::text[])
GROUP BY state;

-- name: find_runs
-- Find runs by the beginning of their id, and migrations by their run of Airflow, latest first.
-- params: beginning, airflow_run_id, maximum; beginning null: no run by its id
-- rows: (maintenance_run_id)
-- index: plan_runs_pkey; none for the beginning, runs are few
SELECT maintenance_run_id
FROM queuekeeper.runs
WHERE
    starts_with(maintenance_run_id, %(beginning)s::text)
    OR maintenance_run_id IN (
        SELECT plan_runs.plan_id
        FROM queuekeeper.plan_runs
        WHERE plan_runs.run_id = %(airflow_run_id)s
    )
ORDER BY created_at DESC, maintenance_run_id ASC
LIMIT %(maximum)s;

-- name: approve_run
-- Record who approved a run; a run at work keeps its state, a refused run is not changed.
-- params: maintenance_run_id, approved_by, approved_at
-- rows: at most one: (maintenance_run_id)
-- index: maintenance_runs_pkey, plans_pkey
UPDATE queuekeeper.runs
SET
    state = CASE WHEN state IN ('planned', 'rejected', 'stopped') THEN 'approved' ELSE state END,
    approved_by = %(approved_by)s,
    approved_at = coalesce(%(approved_at)s::timestamptz, clock_timestamp())
WHERE
    maintenance_run_id = %(maintenance_run_id)s
    AND refused = ''
RETURNING maintenance_run_id;

-- name: reject_planned_run
-- Record that a run that waited for an approval was not approved.
-- params: maintenance_run_id
-- rows: at most one: (maintenance_run_id)
-- index: maintenance_runs_pkey, plans_pkey
UPDATE queuekeeper.runs
SET
    state = 'rejected'
WHERE
    maintenance_run_id = %(maintenance_run_id)s
    AND state = 'planned'
RETURNING maintenance_run_id;

-- name: set_run_state
-- Move a run to another state.
-- params: maintenance_run_id, state
-- rows: at most one: (maintenance_run_id)
-- index: maintenance_runs_pkey
UPDATE queuekeeper.maintenance_runs
SET
    state = %(state)s,
    updated_at = clock_timestamp()
WHERE maintenance_run_id = %(maintenance_run_id)s
RETURNING maintenance_run_id;

-- name: lock_run
-- Lock a run until the end of the transaction, so that one share at a time tells its state.
-- params: maintenance_run_id
-- rows: at most one: (maintenance_run_id)
-- index: maintenance_runs_pkey
SELECT maintenance_run_id
FROM queuekeeper.maintenance_runs
WHERE maintenance_run_id = %(maintenance_run_id)s
FOR UPDATE;

-- name: set_share_state
-- Record that a share of a run is at work, or how its work has ended.
-- params: maintenance_run_id, shard, state
-- rows: none
-- index: maintenance_progress_pkey
INSERT INTO queuekeeper.maintenance_progress (maintenance_run_id, shard, cursor, state)
VALUES (%(maintenance_run_id)s, %(shard)s, '', %(state)s)
ON CONFLICT (maintenance_run_id, shard) DO UPDATE
    SET state = excluded.state;

-- name: share_states
-- Read the state of each share of a run that has begun.
-- params: maintenance_run_id
-- rows: (shard, state)
-- index: maintenance_progress_pkey
SELECT
    shard,
    CASE WHEN done THEN 'done' ELSE state END AS state
FROM queuekeeper.maintenance_progress
WHERE maintenance_run_id = %(maintenance_run_id)s;

-- name: save_run_report
-- Store the report of a run.
-- params: maintenance_run_id, report
-- rows: at most one: (maintenance_run_id)
-- index: maintenance_runs_pkey
UPDATE queuekeeper.maintenance_runs
SET
    report = %(report)s,
    updated_at = clock_timestamp()
WHERE maintenance_run_id = %(maintenance_run_id)s
RETURNING maintenance_run_id;

-- name: run_control
-- Read what a person may change while a run works.
-- params: maintenance_run_id
-- rows: at most one: (paused, throttle_operations_per_s)
-- index: maintenance_runs_pkey, plans_pkey
SELECT
    paused,
    throttle_operations_per_s
FROM queuekeeper.runs
WHERE maintenance_run_id = %(maintenance_run_id)s;

-- name: set_run_paused
-- Pause or resume a run.
-- params: maintenance_run_id, paused
-- rows: at most one: (maintenance_run_id)
-- index: maintenance_runs_pkey, plans_pkey
UPDATE queuekeeper.runs
SET
    paused = %(paused)s
WHERE maintenance_run_id = %(maintenance_run_id)s
RETURNING maintenance_run_id;

-- name: set_run_throttle
-- Change how fast a run may work, also while it does.
-- params: maintenance_run_id, operations_per_s
-- rows: at most one: (maintenance_run_id)
-- index: maintenance_runs_pkey, plans_pkey
UPDATE queuekeeper.runs
SET
    throttle_operations_per_s = %(operations_per_s)s
WHERE maintenance_run_id = %(maintenance_run_id)s
RETURNING maintenance_run_id;

-- name: save_shard_progress
-- Record the progress of a run in one shard.
-- params: maintenance_run_id, shard, cursor, scanned, removed, repaired, freed_bytes, counts, done
-- rows: none
-- index: maintenance_progress_pkey
INSERT INTO queuekeeper.maintenance_progress (
    maintenance_run_id, shard, cursor, scanned, removed, repaired, freed_bytes, counts, done
)
VALUES (
    %(maintenance_run_id)s, %(shard)s, %(cursor)s, %(scanned)s, %(removed)s, %(repaired)s, %(freed_bytes)s,
    %(counts)s, %(done)s
)
ON CONFLICT (maintenance_run_id, shard) DO UPDATE
    SET (
        cursor, scanned, removed, repaired, freed_bytes, counts, done, updated_at
    ) = (
        excluded.cursor, excluded.scanned, excluded.removed, excluded.repaired, excluded.freed_bytes, excluded.counts,
        excluded.done, clock_timestamp()
    );

-- name: shard_progress
-- Read the progress of a run, shard by shard.
-- params: maintenance_run_id
-- rows: (shard, cursor, scanned, removed, repaired, freed_bytes, counts, done, updated_at)
-- index: maintenance_progress_pkey, progress_pkey, online_cohorts_pkey
SELECT
    shard,
    cursor,
    scanned,
    removed,
    repaired,
    freed_bytes,
    counts,
    done,
    updated_at
FROM queuekeeper.run_progress
WHERE maintenance_run_id = %(maintenance_run_id)s
ORDER BY shard;

-- name: run_progress
-- Sum up the progress of runs; a run that has not begun is left out.
-- params: maintenance_run_ids
-- rows: (maintenance_run_id, shares, done, scanned, updated_at)
-- index: maintenance_progress_pkey, progress_pkey, online_cohorts_pkey
SELECT
    maintenance_run_id,
    count(*) AS shares,
    count(*) FILTER (WHERE done) AS done,
    sum(scanned)::bigint AS scanned,
    max(updated_at) AS updated_at
FROM queuekeeper.run_progress
WHERE maintenance_run_id = any(%(maintenance_run_ids)b::text[])
GROUP BY maintenance_run_id;

-- name: clear_progress
-- Delete the progress of parts whose names have a prefix.
-- params: plan_id, step, parts_prefix
-- rows: none
-- index: progress_pkey
DELETE FROM queuekeeper.progress
WHERE
    plan_id = %(plan_id)s
    AND step = %(step)s
    AND starts_with(part, %(parts_prefix)s);

-- name: lock_shard
-- Try to lock one shard of a run for this session, without waiting.
-- params: key
-- rows: one: (whether this session holds it now)
-- index: none
SELECT pg_try_advisory_lock(%(key)s::bigint) AS locked;

-- name: unlock_shard
-- Release the lock of a shard that this session holds.
-- params: key
-- rows: one, without meaning
-- index: none
SELECT pg_advisory_unlock(%(key)s::bigint) AS unlocked;

-- name: take_work
-- Take work from the bucket of a run, now where no instant is given; delete buckets that nobody has asked for a day.
-- params: run_id, amount, per_s, unused_s, at
-- rows: one: (how much the rate has to release before the work may be done)
-- index: rate_buckets_pkey
WITH idle AS (
    SELECT buckets.run_id
    FROM queuekeeper.rate_buckets AS buckets
    WHERE buckets.taken_at < now() - interval '1 day' AND buckets.run_id <> %(run_id)s
    FOR UPDATE SKIP LOCKED
),

forgotten AS (
    DELETE FROM queuekeeper.rate_buckets AS buckets USING idle
    WHERE buckets.run_id = idle.run_id
)

INSERT INTO queuekeeper.rate_buckets AS bucket (run_id, debt, per_s, taken_at)
VALUES (
    %(run_id)s, %(amount)s::double precision, %(per_s)s::double precision,
    coalesce(%(at)s::timestamptz, clock_timestamp())
)
ON CONFLICT (run_id) DO UPDATE
    SET
        debt = excluded.debt + greatest(
            bucket.debt - bucket.per_s * extract(
                EPOCH FROM greatest(interval '0', coalesce(%(at)s, clock_timestamp()) - bucket.taken_at)
            )::double precision,
            -%(unused_s)s::double precision * excluded.per_s
        ),
        per_s = excluded.per_s,
        taken_at = greatest(bucket.taken_at, coalesce(%(at)s, clock_timestamp()))
RETURNING debt;
