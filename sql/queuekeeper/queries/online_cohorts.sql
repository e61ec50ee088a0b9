-- Return the states of the armed cohorts of a plan.
-- params: plan_id, cohorts; cohorts: null for all
-- rows: (cohort, slot_first, slot_last, state, step_at, default_owner, driver or 0, dirty_reason, servers,
-- verified_at_ms)
-- index: online_cohorts_pkey
SELECT
    cohort,
    slot_first,
    slot_last,
    state,
    step_at,
    default_owner,
    coalesce(driver, 0) AS driver,
    dirty_reason,
    servers,
    verified_at_ms
FROM queuekeeper.online_cohorts
WHERE
    plan_id = %(plan_id)s
    AND (%(cohorts)b::int[] IS NULL OR cohort = any(%(cohorts)b::int[]))
ORDER BY cohort
