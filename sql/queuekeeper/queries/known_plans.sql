-- Name the plans that exist, latest first.
-- params: maximum
-- rows: (plan_id)
-- index: none; plans are few
SELECT plan_id
FROM queuekeeper.plans
ORDER BY planned_at DESC, plan_id ASC
LIMIT %(maximum)s
