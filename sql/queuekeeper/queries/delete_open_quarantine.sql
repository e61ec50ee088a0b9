-- Forget the open entries of cohorts that are copied anew; what was replayed stays.
-- params: plan_id, cohorts
-- rows: none
-- index: quarantine_plan_id_cohort_idx
DELETE FROM queuekeeper.quarantine
WHERE
    plan_id = %(plan_id)s
    AND cohort = any(%(cohorts)s::int[])
    AND status = 'open'
