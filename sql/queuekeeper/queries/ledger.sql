-- Read the fates of rows, cohort by cohort.
-- params: plan_id
-- rows: (cohort, rows_seen, copied, expired, trimmed, superseded, quarantined, sessions_seen, sessions_copied,
-- differences, digest)
-- index: ledger_pkey
SELECT
    cohort,
    rows_seen,
    copied,
    expired,
    trimmed,
    superseded,
    quarantined,
    sessions_seen,
    sessions_copied,
    differences,
    digest
FROM queuekeeper.ledger
WHERE plan_id = %(plan_id)s
ORDER BY cohort
