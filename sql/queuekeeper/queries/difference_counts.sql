-- Count differences by kind, most frequent first: all that were found, and those that are listed.
-- params: plan_id
-- rows: (kind, found, listed)
-- index: difference_counts_pkey, differences_plan_id_cohort_idx
SELECT
    counts.kind,
    sum(counts.found)::bigint AS found,
    (
        SELECT count(*)
        FROM queuekeeper.differences
        WHERE
            differences.plan_id = %(plan_id)s
            AND differences.kind = counts.kind
    ) AS listed
FROM queuekeeper.difference_counts AS counts
WHERE counts.plan_id = %(plan_id)s
GROUP BY counts.kind
ORDER BY found DESC, counts.kind ASC
