-- Rows of the suite of the quarantine: reasons for which rows wait, now and in the run before.
-- params: quality_run_id
-- rows: (origin, reason, waiting, waiting_before, growth, oldest_days)
-- index: quality_runs_pkey
SELECT
    now_waiting.origin,
    now_waiting.reason,
    now_waiting.open AS waiting,
    before_waiting.open AS waiting_before,
    -- A reason that is new has grown from nothing; the first run of all has nothing to grow from.
    CASE
        WHEN run_before.numbers -> 'quarantine' IS NULL THEN 0
        ELSE greatest(0, now_waiting.open - coalesce(before_waiting.open, 0))
    END AS growth,
    cast((extract(EPOCH FROM runs.started_at) * 1000 - now_waiting.oldest_ms) / 86400000 AS double precision)
        AS oldest_days
FROM queuekeeper.quality_runs AS runs
CROSS JOIN
    jsonb_to_recordset(runs.numbers -> 'quarantine') AS now_waiting (
        origin text,
        reason text,
        open bigint,
        oldest_ms bigint
    )
LEFT JOIN LATERAL (
    SELECT before.numbers
    FROM queuekeeper.quality_runs AS before
    WHERE before.finished_at IS NOT NULL AND before.started_at < runs.started_at
    ORDER BY before.started_at DESC
    LIMIT 1
) AS run_before ON TRUE
LEFT JOIN
    LATERAL jsonb_to_recordset(run_before.numbers -> 'quarantine') AS before_waiting (
        origin text,
        reason text,
        open bigint
    )
    ON now_waiting.origin = before_waiting.origin AND now_waiting.reason = before_waiting.reason
WHERE runs.quality_run_id = %(quality_run_id)s AND now_waiting.open > 0
