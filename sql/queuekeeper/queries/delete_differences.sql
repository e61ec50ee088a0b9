-- Forget the differences of cohorts that are verified anew.
-- params: plan_id, cohorts
-- rows: none
-- index: differences_plan_id_cohort_idx
DELETE FROM queuekeeper.differences
WHERE
    plan_id = %(plan_id)s
    AND cohort = any(%(cohorts)s::int[])
