-- Differences are counted by kind before only the first ones are listed.
INSERT INTO queuekeeper.difference_counts (plan_id, cohort, kind, found)
SELECT
    plan_id,
    cohort,
    kind,
    count(*) AS found
FROM queuekeeper.differences
GROUP BY plan_id, cohort, kind;
