-- Forget the cohorts of a plan that is planned anew.
-- params: plan_id
-- rows: none
-- index: cohorts_pkey
DELETE FROM queuekeeper.cohorts
WHERE plan_id = %(plan_id)s
