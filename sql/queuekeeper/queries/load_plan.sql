-- Read one plan.
-- params: plan_id
-- rows: at most one: (plan_id, parameters, source_fingerprint, code_version, as_of_ms, chosen, state,
-- state_reason)
-- index: plans_pkey
SELECT
    plan_id,
    parameters,
    source_fingerprint,
    code_version,
    as_of_ms,
    chosen,
    state,
    state_reason
FROM queuekeeper.plans
WHERE plan_id = %(plan_id)s
