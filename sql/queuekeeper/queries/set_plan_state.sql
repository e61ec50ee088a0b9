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
RETURNING plan_id
