-- Close the open incidents of a place that a suite has found and whose check the suite has no more.
-- params: place, suite, checks, at, quality_run_id, sample_percent, closed_by, closed_reason
-- rows: none
-- index: incidents_open_key, quality_results_pkey
UPDATE queuekeeper.incidents
SET
    closed_at = %(at)s,
    closed_run_id = %(quality_run_id)s,
    closed_by = %(closed_by)s,
    closed_reason = %(closed_reason)s
WHERE
    place = %(place)s
    AND closed_at IS NULL
    AND last_seen_at <= %(at)s
    AND sample_percent <= %(sample_percent)s
    AND check_id <> all(%(checks)b::text[])
    -- Another suite may judge the same check: what it has found stays.
    AND (
        SELECT bool_and(results.suite = %(suite)s)
        FROM queuekeeper.quality_results AS results
        WHERE
            results.quality_run_id = incidents.last_run_id
            AND results.check_id = incidents.check_id
            AND results.status IN ('failed', 'known')
    )
