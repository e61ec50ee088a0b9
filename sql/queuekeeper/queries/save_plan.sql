-- Store a new plan, or refresh one that nobody has approved; a plan at work stays as it is.
-- params: plan_id, parameters, source_fingerprint, code_version, as_of_ms, chosen, state, state_reason,
-- throttle_messages_per_s
-- rows: one: (plan_id) when stored or refreshed, none when the plan is at work
-- index: plans_pkey
INSERT INTO queuekeeper.plans (
    plan_id, parameters, source_fingerprint, code_version, as_of_ms, chosen, state, state_reason,
    throttle_messages_per_s
)
VALUES (
    %(plan_id)s, %(parameters)s, %(source_fingerprint)s, %(code_version)s, %(as_of_ms)s, %(chosen)s, %(state)s,
    %(state_reason)s, %(throttle_messages_per_s)s
)
ON CONFLICT (plan_id) DO UPDATE
    SET
        parameters = excluded.parameters,
        as_of_ms = excluded.as_of_ms,
        chosen = excluded.chosen,
        state = excluded.state,
        state_reason = excluded.state_reason,
        throttle_messages_per_s = excluded.throttle_messages_per_s,
        updated_at = clock_timestamp()
    WHERE queuekeeper.plans.state IN ('planned', 'refused')
RETURNING plan_id
