-- Move cohorts to another state.
-- params: plan_id, cohorts, driver, state
-- rows: one per cohort that was moved: (cohort)
-- index: online_cohorts_pkey
UPDATE queuekeeper.online_cohorts
SET
    state = %(state)s,
    step_at = clock_timestamp()
WHERE
    plan_id = %(plan_id)s
    AND cohort = any(%(cohorts)s::int[])
    AND driver = %(driver)s
RETURNING cohort
