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
    -- A run that is judged again, after a later one, is not the last.
    severity = CASE
        WHEN known.last_seen_at > excluded.last_seen_at THEN known.severity ELSE excluded.severity
    END,
    status = CASE WHEN known.last_seen_at > excluded.last_seen_at THEN known.status ELSE excluded.status END,
    unexpected_count = CASE
        WHEN known.last_seen_at > excluded.last_seen_at THEN known.unexpected_count ELSE excluded.unexpected_count
    END,
    last_seen_at = greatest(known.last_seen_at, excluded.last_seen_at),
    last_run_id = CASE
        WHEN known.last_seen_at > excluded.last_seen_at THEN known.last_run_id ELSE excluded.last_run_id
    END,
    cohort_count = excluded.cohort_count,
    -- With another number of cohorts, their slots differ: then all cohorts have to be checked again.
    cohorts = CASE
        WHEN known.cohort_count = excluded.cohort_count AND known.cohorts @> excluded.cohorts THEN known.cohorts
        WHEN known.cohort_count = excluded.cohort_count THEN known.cohorts || excluded.cohorts
        ELSE array(SELECT generate_series(0, %(cohort_count)s - 1))
    END,
    sample_percent = greatest(known.sample_percent, excluded.sample_percent)
