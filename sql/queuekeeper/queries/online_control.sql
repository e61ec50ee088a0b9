-- Tell what people have asked of an online migration, and what it says of itself.
-- params: plan_id
-- rows: at most one: (paused, clients_per_s, held_back, canary, rehearsed_at)
-- index: online_control_pkey
SELECT
    paused,
    clients_per_s,
    held_back,
    canary,
    rehearsed_at
FROM queuekeeper.online_control
WHERE plan_id = %(plan_id)s
