-- Count quarantined messages, by reason.
-- params: none
-- rows: (reason, open, replayed)
-- index: none, as all rows are counted
SELECT
    reason,
    count(*) FILTER (WHERE status = 'open') AS open,
    count(*) FILTER (WHERE status = 'replayed') AS replayed
FROM queuekeeper.session_quarantine
GROUP BY reason
ORDER BY open DESC, reason ASC
