-- Record the fates of the rows of one cohort.
-- params: plan_id, cohort, rows_seen, copied, expired, trimmed, superseded, quarantined, sessions_seen,
-- sessions_copied, differences, digest, verified_at_ms
-- rows: none
-- index: ledger_pkey
INSERT INTO queuekeeper.ledger (
    plan_id, cohort, rows_seen, copied, expired, trimmed, superseded, quarantined, sessions_seen, sessions_copied,
    differences, digest, verified_at_ms
)
VALUES (
    %(plan_id)s, %(cohort)s, %(rows_seen)s, %(copied)s, %(expired)s, %(trimmed)s, %(superseded)s, %(quarantined)s,
    %(sessions_seen)s, %(sessions_copied)s, %(differences)s, %(digest)s, %(verified_at_ms)s
)
ON CONFLICT (plan_id, cohort) DO UPDATE
    SET (
        rows_seen, copied, expired, trimmed, superseded, quarantined, sessions_seen, sessions_copied, differences,
        digest, verified_at_ms
    ) = (
        excluded.rows_seen, excluded.copied, excluded.expired, excluded.trimmed, excluded.superseded,
        excluded.quarantined, excluded.sessions_seen, excluded.sessions_copied, excluded.differences, excluded.digest,
        excluded.verified_at_ms
    )
