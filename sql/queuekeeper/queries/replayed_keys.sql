-- Name the source rows of some cohorts that were replayed already.
-- params: plan_id, cohorts
-- rows: (kind, client_id, serial_number)
-- index: quarantine_plan_id_cohort_idx
SELECT
    kind,
    client_id,
    serial_number
FROM queuekeeper.quarantine
WHERE
    plan_id = %(plan_id)s
    AND cohort = any(%(cohorts)s::int[])
    AND status = 'replayed'
