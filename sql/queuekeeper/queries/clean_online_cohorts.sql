-- Note that cohorts were compared and found equal.
-- params: plan_id, cohorts, driver, at_ms
-- rows: one per cohort: (cohort)
-- index: online_cohorts_pkey
UPDATE queuekeeper.online_cohorts
SET
    dirty_reason = '',
    verified_at_ms = %(at_ms)s
WHERE
    plan_id = %(plan_id)s
    AND cohort = any(%(cohorts)s::int[])
    AND driver = %(driver)s
RETURNING cohort
