-- Tell who agreed to a plan, and when.
-- params: plan_id
-- rows: at most one: (approved_by, approved_at)
-- index: plans_pkey
SELECT
    approved_by,
    approved_at
FROM queuekeeper.plans
WHERE plan_id = %(plan_id)s
