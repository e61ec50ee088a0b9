-- Note that the canary of an online migration has gone to Redis and back.
-- params: plan_id
-- rows: none
-- index: online_control_pkey
UPDATE queuekeeper.online_control
SET rehearsed_at = clock_timestamp()
WHERE plan_id = %(plan_id)s
