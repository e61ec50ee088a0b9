-- Have an online migration wait before its next client, or go on.
-- params: plan_id, paused
-- rows: none
-- index: online_control_pkey
UPDATE queuekeeper.online_control
SET paused = %(paused)s
WHERE plan_id = %(plan_id)s
