-- Count the differences of a plan.
-- params: plan_id
-- rows: one: (count)
-- index: differences_plan_id_cohort_idx
SELECT count(*) AS differences
FROM queuekeeper.differences
WHERE plan_id = %(plan_id)s
