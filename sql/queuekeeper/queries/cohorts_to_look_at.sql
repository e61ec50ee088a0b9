-- List the cohorts that failed, differ or have rows unaccounted for, the worst first.
-- params: plan_id, maximum
-- rows: (cohort, state, unaccounted, differences)
-- index: cohorts_pkey, ledger_pkey
WITH wrong AS MATERIALIZED (
    -- This comes first, so that few rows are joined, even if the planner has no statistics of a new plan's rows.
    SELECT
        ledger.cohort,
        ledger.unaccounted,
        ledger.differences
    FROM queuekeeper.ledger
    WHERE ledger.plan_id = %(plan_id)s AND (ledger.unaccounted <> 0 OR ledger.differences > 0)
)

SELECT
    cohorts.cohort,
    cohorts.state,
    coalesce(wrong.unaccounted, 0) AS unaccounted,
    coalesce(wrong.differences, 0) AS differences
FROM (
    SELECT
        found.cohort,
        found.state
    FROM queuekeeper.cohorts AS found
    WHERE found.plan_id = %(plan_id)s AND (found.state = 'failed' OR found.cohort IN (SELECT wrong.cohort FROM wrong))
) AS cohorts
LEFT JOIN wrong ON cohorts.cohort = wrong.cohort
ORDER BY abs(coalesce(wrong.unaccounted, 0)) DESC, coalesce(wrong.differences, 0) DESC, cohorts.cohort ASC
LIMIT %(maximum)s
