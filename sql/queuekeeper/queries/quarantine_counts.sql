-- Count quarantined rows by reason, most frequent first.
-- params: plan_id
-- rows: (reason, kind, open, replayed)
-- index: quarantine_plan_id_cohort_idx
SELECT
    reason,
    kind,
    count(*) FILTER (WHERE status = 'open') AS open,
    count(*) FILTER (WHERE status = 'replayed') AS replayed
FROM queuekeeper.quarantine
WHERE plan_id = %(plan_id)s
GROUP BY reason, kind
ORDER BY count(*) DESC, reason ASC, kind ASC
