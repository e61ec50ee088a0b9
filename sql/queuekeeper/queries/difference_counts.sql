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
ORDER BY found DESC, kind ASC
