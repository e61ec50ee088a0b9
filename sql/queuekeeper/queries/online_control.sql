-- Tell what people have asked of an online migration, and what it says of itself.
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
WHERE control.plan_id = %(plan_id)s
