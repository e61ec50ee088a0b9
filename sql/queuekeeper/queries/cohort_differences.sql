-- List the differences of one cohort that were kept, a client at a time and in the order of its messages.
-- params: plan_id, cohort, maximum
-- rows: (client_id, serial_number, kind, expected, found)
-- index: differences_plan_id_cohort_idx
SELECT
    client_id,
    serial_number,
    kind,
    expected,
    found
FROM queuekeeper.differences
WHERE plan_id = %(plan_id)s AND cohort = %(cohort)s
ORDER BY client_id COLLATE "C", serial_number, kind
LIMIT %(maximum)s
