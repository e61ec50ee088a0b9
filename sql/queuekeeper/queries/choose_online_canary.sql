-- Note which cohorts of an online migration go first.
-- params: plan_id, cohorts
-- rows: none
-- index: online_control_pkey
UPDATE queuekeeper.online_control
SET canary = %(cohorts)s
WHERE plan_id = %(plan_id)s
