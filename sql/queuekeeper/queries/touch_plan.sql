-- Note that a plan was asked for just now.
-- params: plan_id
-- rows: none
-- index: plans_pkey
UPDATE queuekeeper.plans
SET planned_at = clock_timestamp()
WHERE plan_id = %(plan_id)s
