-- Count the chosen cohorts of the newest plan by state.
-- params: none
-- rows: (plan_id, state, cohorts)
-- index: cohorts_pkey
SELECT
    plans.plan_id,
    cohorts.state,
    count(*) AS cohorts
FROM (
    SELECT
        plan_id,
        chosen
    FROM queuekeeper.plans
    ORDER BY planned_at DESC, plan_id ASC
    LIMIT 1
) AS plans
INNER JOIN queuekeeper.cohorts AS cohorts ON plans.plan_id = cohorts.plan_id AND cohorts.cohort = any(plans.chosen)
GROUP BY plans.plan_id, cohorts.state
ORDER BY cohorts.state
