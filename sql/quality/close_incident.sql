-- Close an incident because a person says so.
-- params: incident_id, closed_by, closed_reason
-- rows: (incident_id), none where it is closed
-- index: incidents_pkey
UPDATE queuekeeper.incidents
SET
    closed_at = clock_timestamp(),
    closed_by = %(closed_by)s,
    closed_reason = %(closed_reason)s
WHERE
    incident_id = %(incident_id)s
    AND closed_at IS NULL
RETURNING incident_id
