-- Forget how many differences cohorts had that are verified anew.
-- params: plan_id, cohorts
-- rows: none
-- index: difference_counts_pkey
DELETE FROM queuekeeper.difference_counts
WHERE
    plan_id = %(plan_id)s
    AND cohort = any(%(cohorts)s::int[])
