-- Record that a run has found a fault, in the open incident of its check and place, or in a new one.
-- params: check_id, place, severity, status, unexpected_count, at, quality_run_id, cohort_count, cohorts,
-- sample_percent
-- rows: none
-- index: incidents_open_key
INSERT INTO queuekeeper.incidents AS known (
    check_id, place, severity, status, unexpected_count, first_seen_at, first_run_id, last_seen_at, last_run_id,
    cohort_count, cohorts, sample_percent
)
VALUES (
    %(check_id)s, %(place)s, %(severity)s, %(status)s, %(unexpected_count)s, %(at)s, %(quality_run_id)s, %(at)s,
    %(quality_run_id)s, %(cohort_count)s, %(cohorts)s, %(sample_percent)s
)
ON CONFLICT (check_id, place) WHERE closed_at IS NULL
DO UPDATE SET
    severity = excluded.severity,
    status = excluded.status,
    unexpected_count = excluded.unexpected_count,
    last_seen_at = greatest(known.last_seen_at, excluded.last_seen_at),
    last_run_id = excluded.last_run_id,
    cohort_count = excluded.cohort_count,
    -- With another number of cohorts, their slots differ: then all cohorts have to be checked again.
    cohorts = CASE
        WHEN known.cohort_count = excluded.cohort_count AND known.cohorts @> excluded.cohorts THEN known.cohorts
        WHEN known.cohort_count = excluded.cohort_count THEN known.cohorts || excluded.cohorts
        ELSE array(SELECT generate_series(0, %(cohort_count)s - 1))
    END,
    sample_percent = greatest(known.sample_percent, excluded.sample_percent)
