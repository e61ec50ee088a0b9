-- Read differences, a cohort and a client at a time.
-- params: plan_id, maximum
-- rows: (cohort, client_id, serial_number, kind, expected, found)
-- index: differences_plan_id_cohort_idx
SELECT
    cohort,
    client_id,
    serial_number,
    kind,
    expected,
    found
FROM queuekeeper.differences
WHERE plan_id = %(plan_id)s
ORDER BY cohort, client_id COLLATE "C", serial_number NULLS FIRST, kind
LIMIT %(maximum)s
