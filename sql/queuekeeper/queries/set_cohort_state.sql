-- Move cohorts of a plan to another state.
-- params: plan_id, cohorts, state
-- rows: none
-- index: cohorts_pkey
UPDATE queuekeeper.cohorts
SET state = %(state)s
WHERE
    plan_id = %(plan_id)s
    AND cohort = any(%(cohorts)s::int[])
