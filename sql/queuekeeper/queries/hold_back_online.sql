-- Note what slows an online migration down.
-- params: plan_id, reason
-- rows: none
-- index: online_control_pkey
UPDATE queuekeeper.online_control
SET held_back = %(reason)s
WHERE plan_id = %(plan_id)s
