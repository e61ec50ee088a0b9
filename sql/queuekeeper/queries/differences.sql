-- name: load_differences
-- Load differences.
-- params: none; rows follow in the order of the columns
-- rows: none
-- index: none
COPY queuekeeper.differences (
    plan_id, cohort, client_id, serial_number, kind, expected, found
) FROM STDIN (FORMAT "binary");

-- name: differences
-- Read differences, a cohort and a client at a time.
-- params: plan_id, maximum
-- rows: (cohort, client_id, serial_number, kind, expected, found)
-- index: differences_plan_id_cohort_idx
SELECT
    cohort,
    client_id,
    -- include: difference_columns
    found
FROM queuekeeper.differences
WHERE plan_id = %(plan_id)s
ORDER BY cohort, client_id COLLATE "C", serial_number NULLS FIRST, kind
LIMIT %(maximum)s;

-- name: cohort_differences
-- List the stored differences of one cohort, by client and in the order of its messages.
-- params: plan_id, cohort, maximum
-- rows: (client_id, serial_number, kind, expected, found)
-- index: differences_plan_id_cohort_idx
SELECT
    client_id,
    -- include: difference_columns
    found
FROM queuekeeper.differences
WHERE plan_id = %(plan_id)s AND cohort = %(cohort)s
ORDER BY client_id COLLATE "C", serial_number, kind
LIMIT %(maximum)s;

-- name: delete_differences
-- Delete the differences of cohorts that are verified again.
-- params: plan_id, cohorts
-- rows: none
-- index: differences_plan_id_cohort_idx
DELETE FROM queuekeeper.differences
WHERE
    plan_id = %(plan_id)s
    AND cohort = any(%(cohorts)b::int[]);

-- name: save_difference_count
-- Store how many differences of one kind a cohort has.
-- params: plan_id, cohort, kind, found
-- rows: none
-- index: difference_counts_pkey
INSERT INTO queuekeeper.difference_counts (plan_id, cohort, kind, found)
VALUES (%(plan_id)s, %(cohort)s, %(kind)s, %(found)s);

-- name: difference_counts
-- Count differences by kind, most frequent first.
-- params: plan_id
-- rows: (kind, found)
-- index: difference_counts_pkey
SELECT
    kind,
    sum(found)::bigint AS found
FROM queuekeeper.difference_counts
WHERE plan_id = %(plan_id)s
GROUP BY kind
ORDER BY found DESC, kind ASC;

-- name: delete_difference_counts
-- Delete the numbers of differences of cohorts that are verified again.
-- params: plan_id, cohorts
-- rows: none
-- index: difference_counts_pkey
DELETE FROM queuekeeper.difference_counts
WHERE
    plan_id = %(plan_id)s
    AND cohort = any(%(cohorts)b::int[]);
