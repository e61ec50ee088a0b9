-- Store how many differences of one kind a cohort has.
-- params: plan_id, cohort, kind, found
-- rows: none
-- index: difference_counts_pkey
INSERT INTO queuekeeper.difference_counts (plan_id, cohort, kind, found)
VALUES (%(plan_id)s, %(cohort)s, %(kind)s, %(found)s)
