-- Change how fast a copy may write, also while it runs.
-- params: plan_id, messages_per_s
-- rows: at most one: (plan_id)
-- index: plans_pkey
UPDATE queuekeeper.plans
SET
    throttle_messages_per_s = %(messages_per_s)s,
    updated_at = clock_timestamp()
WHERE plan_id = %(plan_id)s
RETURNING plan_id
