-- Read incidents, open ones first, the one seen last first.
-- params: closed, incident_id
-- rows: (incident_id, check_id, place, severity, status, unexpected_count, first_seen_at, first_run_id, last_seen_at,
-- last_run_id, cohorts_left, closed_at, closed_by, closed_reason)
-- index: incidents_pkey
SELECT
    incident_id,
    check_id,
    place,
    severity,
    status,
    unexpected_count,
    first_seen_at,
    first_run_id,
    last_seen_at,
    last_run_id,
    (SELECT count(DISTINCT cohort) FROM unnest(cohorts) AS cohort) AS cohorts_left,
    closed_at,
    closed_by,
    closed_reason
FROM queuekeeper.incidents
WHERE
    (closed_at IS NULL OR %(closed)s)
    AND (%(incident_id)s::numeric IS NULL OR incident_id = %(incident_id)s)
ORDER BY closed_at DESC NULLS FIRST, last_seen_at DESC, incident_id DESC
LIMIT 1000
