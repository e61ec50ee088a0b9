-- Say to whom clients of cohorts belong that come for the first time.
-- params: plan_id, cohorts, driver, owner
-- rows: one per cohort: (cohort)
-- index: online_cohorts_pkey
UPDATE queuekeeper.online_cohorts
SET default_owner = %(owner)s
WHERE
    plan_id = %(plan_id)s
    AND cohort = any(%(cohorts)s::int[])
    AND driver = %(driver)s
RETURNING cohort
