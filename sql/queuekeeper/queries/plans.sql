-- name: save_plan
-- Store a new plan, or refresh one that was not approved, or was made too long ago; a plan at work, or with armed
-- cohorts, stays as it is.
-- params: plan_id, parameters, source_fingerprint, code_version, as_of_ms, chosen, state, state_reason,
-- throttle_messages_per_s, target_clustered, valid_ms
-- rows: one: (plan_id) when stored or refreshed, none when the plan is at work
-- index: plans_pkey, cohorts_pkey, online_cohorts_pkey
INSERT INTO queuekeeper.plans (
    plan_id, parameters, source_fingerprint, code_version, as_of_ms, chosen, state, state_reason,
    throttle_messages_per_s, target_clustered
)
VALUES (
    %(plan_id)s, %(parameters)s, %(source_fingerprint)s, %(code_version)s, %(as_of_ms)s, %(chosen)s, %(state)s,
    %(state_reason)s, %(throttle_messages_per_s)s, %(target_clustered)s
)
ON CONFLICT (plan_id) DO UPDATE
    SET (
        parameters, as_of_ms, chosen, state, state_reason, throttle_messages_per_s, target_clustered, approved_by,
        approved_at, updated_at
    ) = (
        excluded.parameters, excluded.as_of_ms, excluded.chosen, excluded.state, excluded.state_reason,
        excluded.throttle_messages_per_s, excluded.target_clustered, NULL, NULL, clock_timestamp()
    )
    WHERE
    (
        queuekeeper.plans.state IN ('planned', 'refused', 'rejected')
        OR (
            queuekeeper.plans.state = 'approved'
            AND queuekeeper.plans.as_of_ms < excluded.as_of_ms - %(valid_ms)s
            AND 'planned' = all(
                SELECT begun.state FROM queuekeeper.cohorts AS begun
                WHERE begun.plan_id = %(plan_id)s
            )
        )
    )
    AND NOT EXISTS (
        SELECT FROM queuekeeper.online_cohorts AS armed
        WHERE armed.plan_id = %(plan_id)s AND armed.state NOT IN ('planned', 'committed')
    )
RETURNING plan_id;

-- name: load_plan
-- Read one plan.
-- params: plan_id
-- rows: at most one: (plan_id, parameters, source_fingerprint, code_version, as_of_ms, chosen, state,
-- state_reason, target_clustered)
-- index: plans_pkey
SELECT
    plan_id,
    parameters,
    source_fingerprint,
    code_version,
    as_of_ms,
    chosen,
    state,
    state_reason,
    target_clustered
FROM queuekeeper.plans
WHERE plan_id = %(plan_id)s;

-- name: moving_plans
-- List the other plans whose cohorts are moving, or may move, at this moment.
-- params: plan_id
-- rows: (plan_id)
-- index: none
SELECT DISTINCT plan_id
FROM queuekeeper.online_cohorts
WHERE
    state NOT IN ('planned', 'committed')
    AND plan_id <> %(plan_id)s
ORDER BY plan_id;

-- name: touch_plan
-- Record that a plan was requested now.
-- params: plan_id
-- rows: none
-- index: plans_pkey
UPDATE queuekeeper.plans
SET planned_at = clock_timestamp()
WHERE plan_id = %(plan_id)s;

-- name: hold_record
-- Let one session at a time replace rows of a plan, until its transaction ends.
-- params: class
-- rows: one, empty
-- index: none
SELECT pg_advisory_xact_lock(%(class)s::int, 0) AS held;

-- name: set_plan_state
-- Move a plan to another state.
-- params: plan_id, state, reason
-- rows: at most one: (plan_id)
-- index: plans_pkey
UPDATE queuekeeper.plans
SET
    state = %(state)s,
    state_reason = %(reason)s,
    updated_at = clock_timestamp()
WHERE plan_id = %(plan_id)s
RETURNING plan_id;

-- name: begin_copy
-- Move a plan to its copy, unless it was refused or made again since it was read.
-- params: plan_id, as_of_ms
-- rows: at most one: (plan_id)
-- index: plans_pkey
UPDATE queuekeeper.plans
SET
    state = 'copying',
    state_reason = '',
    updated_at = clock_timestamp()
WHERE
    plan_id = %(plan_id)s
    AND as_of_ms = %(as_of_ms)s
    AND state <> 'refused'
RETURNING plan_id;

-- name: save_plan_run
-- Record the plan that a run requested; a repeated run may make another plan.
-- params: run_id, plan_id
-- rows: none
-- index: plan_runs_pkey
INSERT INTO queuekeeper.plan_runs (run_id, plan_id)
VALUES (%(run_id)s, %(plan_id)s)
ON CONFLICT (run_id) DO UPDATE
    SET
        plan_id = excluded.plan_id,
        created_at = clock_timestamp();

-- name: plan_of_run
-- Return the plan that a run requested.
-- params: run_id
-- rows: at most one: (plan_id)
-- index: plan_runs_pkey
SELECT plan_id
FROM queuekeeper.plan_runs
WHERE run_id = %(run_id)s;

-- name: verified_at
-- Return when the cohorts of a plan were verified last.
-- params: plan_id
-- rows: one: (ms since 1970, or null)
-- index: ledger_pkey
SELECT max(verified_at_ms) AS verified_at_ms
FROM queuekeeper.ledger
WHERE plan_id = %(plan_id)s;
