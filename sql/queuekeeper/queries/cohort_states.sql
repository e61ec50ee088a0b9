-- Tell where each cohort stands.
-- params: plan_id
-- rows: (cohort, state)
-- index: cohorts_pkey
SELECT
    cohort,
    state
FROM queuekeeper.cohorts
WHERE plan_id = %(plan_id)s
ORDER BY cohort
