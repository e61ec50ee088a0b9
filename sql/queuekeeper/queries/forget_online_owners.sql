-- Forget the owners of the clients of cohorts, which are all PostgreSQL's.
-- params: plan_id, cohorts
-- rows: none
-- index: online_cohorts_pkey, session_owners_slot_idx
DELETE FROM queuekeeper.session_owners AS owners
USING queuekeeper.online_cohorts AS online
WHERE
    online.plan_id = %(plan_id)s
    AND online.cohort = any(%(cohorts)s::int[])
    AND owners.slot BETWEEN online.slot_first AND online.slot_last
    AND owners.owner = 'postgres'
