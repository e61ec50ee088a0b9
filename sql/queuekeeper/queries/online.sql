-- name: make_online_control
-- Create the row by which people control an online migration.
-- params: plan_id
-- rows: none
-- index: online_control_pkey
INSERT INTO queuekeeper.online_control (plan_id)
VALUES (%(plan_id)s)
ON CONFLICT (plan_id) DO NOTHING;

-- name: online_control
-- Return the pause and throttle of an online migration, and its own notes.
-- params: plan_id
-- rows: at most one: (paused, clients_per_s, held_back, canary, rehearsed_at)
-- index: online_control_pkey, plans_pkey
SELECT
    plans.paused,
    plans.throttle_messages_per_s AS clients_per_s,
    control.held_back,
    control.canary,
    control.rehearsed_at
FROM queuekeeper.online_control AS control
INNER JOIN queuekeeper.plans ON control.plan_id = plans.plan_id
WHERE control.plan_id = %(plan_id)s;

-- name: choose_online_canary
-- Record which cohorts of an online migration are moved first.
-- params: plan_id, cohorts
-- rows: none
-- index: online_control_pkey
UPDATE queuekeeper.online_control
SET canary = %(cohorts)s
WHERE plan_id = %(plan_id)s;

-- name: note_online_rehearsal
-- Record that the canary of an online migration was moved to Redis and back.
-- params: plan_id
-- rows: none
-- index: online_control_pkey
UPDATE queuekeeper.online_control
SET rehearsed_at = clock_timestamp()
WHERE plan_id = %(plan_id)s;

-- name: hold_back_online
-- Record what delays an online migration.
-- params: plan_id, reason
-- rows: none
-- index: online_control_pkey
UPDATE queuekeeper.online_control
SET held_back = %(reason)s
WHERE plan_id = %(plan_id)s;

-- name: arm_online_cohort
-- Arm a cohort, so that owners of its clients are recorded and checked; a cohort that is further already stays as it
-- is. Without a driver it is not armed to the end: a disarmed one has forgotten the owners.
-- params: plan_id, cohort, slot_first, slot_last, source
-- rows: none
-- index: online_cohorts_pkey
INSERT INTO queuekeeper.online_cohorts (plan_id, cohort, slot_first, slot_last, state, source_owner, default_owner)
VALUES (%(plan_id)s, %(cohort)s, %(slot_first)s, %(slot_last)s, 'copying', %(source)s, %(source)s)
ON CONFLICT (plan_id, cohort) DO UPDATE SET
    state = 'copying',
    step_at = clock_timestamp(),
    driver = CASE WHEN online_cohorts.state <> 'planned' THEN online_cohorts.driver END
WHERE online_cohorts.state IN ('planned', 'caught_up', 'verified');

-- name: take_online_cohorts
-- Become the driver of cohorts; the one before is refused from now on.
-- params: plan_id, cohorts
-- rows: one per cohort: (driver)
-- index: online_cohorts_pkey
WITH taken AS MATERIALIZED (
    SELECT nextval('queuekeeper.online_drivers') AS driver
)

UPDATE queuekeeper.online_cohorts
SET driver = taken.driver
FROM taken
WHERE
    plan_id = %(plan_id)s
    AND cohort = any(%(cohorts)b::int[])
RETURNING taken.driver;

-- name: set_online_state
-- Move cohorts to another state.
-- params: plan_id, cohorts, driver, state
-- rows: one per cohort that was moved: (cohort)
-- index: online_cohorts_pkey
UPDATE queuekeeper.online_cohorts
SET
    state = %(state)s,
    step_at = clock_timestamp()
WHERE
    plan_id = %(plan_id)s
    -- include: driven_cohorts
RETURNING cohort;

-- name: set_online_default_owner
-- Set the owner of clients of cohorts that connect for the first time.
-- params: plan_id, cohorts, driver, owner
-- rows: one per cohort: (cohort)
-- index: online_cohorts_pkey
UPDATE queuekeeper.online_cohorts
SET default_owner = %(owner)s
WHERE
    plan_id = %(plan_id)s
    -- include: driven_cohorts
RETURNING cohort;

-- name: clean_online_cohorts
-- Record that cohorts were compared and found equal.
-- params: plan_id, cohorts, driver, at_ms
-- rows: one per cohort: (cohort)
-- index: online_cohorts_pkey
UPDATE queuekeeper.online_cohorts
SET
    dirty_reason = '',
    verified_at_ms = %(at_ms)s
WHERE
    plan_id = %(plan_id)s
    -- include: driven_cohorts
RETURNING cohort;

-- name: limit_online_transaction
-- Make the server end this transaction when its driver hangs, so that others wait for it no longer than for a fence.
-- params: lease_ms
-- rows: none
-- index: none
SELECT
    set_config('idle_in_transaction_session_timeout', %(lease_ms)s::text, TRUE) AS idle,
    set_config('statement_timeout', %(lease_ms)s::text, TRUE) AS statement;

-- name: owned_clients
-- Return a page of the clients of a range of slots that belong to one store.
-- params: slot_first, slot_last, owner, mirrored, after_slot, after_client_id, limit; mirrored: null for both kinds
-- rows: (slot, client_id), in this order
-- index: session_owners_slot_idx
SELECT
    slot,
    client_id
FROM queuekeeper.session_owners
WHERE
    slot BETWEEN %(slot_first)s AND %(slot_last)s
    AND owner = %(owner)s
    AND (%(mirrored)s::boolean IS NULL OR mirrored = %(mirrored)s)
    AND (slot, client_id) > (%(after_slot)s::int, %(after_client_id)s)
ORDER BY slot, client_id
LIMIT %(limit)s;

-- name: online_owner_counts
-- Count the clients of each armed cohort by owner.
-- params: plan_id
-- rows: (cohort, postgres, redis, packed, fenced, mirrored); redis: clients of the layout of TBMQ; fenced: clients on
-- their way; mirrored: clients whose changes also go to the source
-- index: online_cohorts_pkey, session_owners_slot_idx
SELECT
    online.cohort,
    count(*) FILTER (WHERE owners.owner = 'postgres') AS postgres,
    count(*) FILTER (WHERE owners.owner = 'redis') AS redis,
    count(*) FILTER (WHERE owners.owner = 'packed') AS packed,
    count(*) FILTER (WHERE owners.state = 'fenced' AND owners.fenced_until > clock_timestamp()) AS fenced,
    count(*) FILTER (WHERE owners.mirrored) AS mirrored
FROM queuekeeper.online_cohorts AS online
LEFT JOIN queuekeeper.session_owners AS owners ON owners.slot BETWEEN online.slot_first AND online.slot_last
WHERE online.plan_id = %(plan_id)s
GROUP BY online.cohort
ORDER BY online.cohort;

-- name: quiet_clients
-- Return the clients of a range of slots that are PostgreSQL's, those first that were not written to for longest.
-- params: slot_first, slot_last
-- rows: (client_id)
-- index: session_owners_slot_idx, device_session_ctx_pkey
SELECT owners.client_id
FROM queuekeeper.session_owners AS owners
LEFT JOIN device_session_ctx AS ctx ON owners.client_id = ctx.client_id
WHERE
    owners.slot BETWEEN %(slot_first)s AND %(slot_last)s
    AND owners.owner = 'postgres'
ORDER BY ctx.last_updated_time NULLS FIRST, owners.client_id;

-- name: forget_online_owners
-- Forget the owners of the clients of cohorts, which are all the source's; where an earlier migration was committed
-- they are kept, since a client without a row would be its target's.
-- params: plan_id, cohorts
-- rows: none
-- index: online_cohorts_pkey, session_owners_slot_idx
DELETE FROM queuekeeper.session_owners AS owners
USING queuekeeper.online_cohorts AS online
WHERE
    online.plan_id = %(plan_id)s
    AND online.cohort = any(%(cohorts)b::int[])
    AND owners.slot BETWEEN online.slot_first AND online.slot_last
    AND owners.owner = online.source_owner
    AND NOT EXISTS (
        SELECT 1 AS one
        FROM queuekeeper.online_cohorts AS earlier
        WHERE
            earlier.state = 'committed'
            AND owners.slot BETWEEN earlier.slot_first AND earlier.slot_last
    );
