-- Tell how fast a copy may write.
-- params: plan_id
-- rows: at most one: (messages per second or null)
-- index: plans_pkey
SELECT throttle_messages_per_s
FROM queuekeeper.plans
WHERE plan_id = %(plan_id)s
