-- Count quarantined rows by who put them there and why; the most that wait come first.
-- params: none
-- rows: (origin, reason, open, replayed, oldest_ms)
-- index: none, as all rows are counted
SELECT
    origin,
    reason,
    count(*) FILTER (WHERE status = 'open') AS open,
    count(*) FILTER (WHERE status = 'replayed') AS replayed,
    (extract(EPOCH FROM min(quarantined_at) FILTER (WHERE status = 'open')) * 1000)::bigint AS oldest_ms
FROM (
    SELECT
        'session_migration' AS origin,
        reason,
        status,
        quarantined_at
    FROM queuekeeper.quarantine
    UNION ALL
    SELECT
        'session store' AS origin,
        reason,
        status,
        quarantined_at
    FROM queuekeeper.session_quarantine
) AS quarantined
GROUP BY origin, reason
ORDER BY open DESC, origin ASC, reason ASC
