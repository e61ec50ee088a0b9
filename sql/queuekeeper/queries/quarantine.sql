-- name: load_quarantine
-- Load quarantined rows.
-- params: none; rows follow in the order of the columns
-- rows: none
-- index: none
COPY queuekeeper.quarantine (
    plan_id, cohort, kind, reason, detail, client_id, serial_number, topic, time, packet_id, packet_type, qos, payload,
    user_properties, retain, msg_expiry_interval, payload_format_indicator, content_type, response_topic,
    correlation_data, last_packet_id
) FROM STDIN (FORMAT "binary");

-- name: delete_open_quarantine
-- Delete the open entries of cohorts that are copied again; replayed ones stay.
-- params: plan_id, cohorts
-- rows: none
-- index: quarantine_plan_id_cohort_idx
DELETE FROM queuekeeper.quarantine
WHERE
    plan_id = %(plan_id)s
    AND cohort = any(%(cohorts)b::int[])
    AND status = 'open';

-- name: quarantine_status
-- Return whether a quarantined row is open or replayed.
-- params: quarantine_id
-- rows: at most one: (status)
-- index: quarantine_pkey
SELECT status
FROM queuekeeper.quarantine
WHERE quarantine_id = %(quarantine_id)s;

-- name: quarantine_counts
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
ORDER BY count(*) DESC, reason ASC, kind ASC;

-- name: mark_replayed
-- Record that a quarantined row was replayed; repeating this changes nothing.
-- params: quarantine_id, assigned_packet_id, at_ms
-- rows: at most one: (quarantine_id) when it was open
-- index: quarantine_pkey
UPDATE queuekeeper.quarantine
SET
    status = 'replayed',
    assigned_packet_id = %(assigned_packet_id)s,
    replayed_at = to_timestamp(%(at_ms)s::bigint / 1000.0)
WHERE
    quarantine_id = %(quarantine_id)s
    AND status = 'open'
RETURNING quarantine_id;

-- name: reopen_quarantine
-- Record that replayed rows are no longer in a session.
-- params: quarantine_ids
-- rows: none
-- index: quarantine_pkey
UPDATE queuekeeper.quarantine
SET
    status = 'open',
    assigned_packet_id = NULL,
    replayed_at = NULL
WHERE quarantine_id = any(%(quarantine_ids)b::bigint[]);

-- name: replayed_keys
-- List the source rows of some cohorts that were replayed already.
-- params: plan_id, cohorts
-- rows: (kind, client_id, serial_number)
-- index: quarantine_plan_id_cohort_idx
SELECT
    kind,
    client_id,
    serial_number
FROM queuekeeper.quarantine
WHERE
    plan_id = %(plan_id)s
    AND cohort = any(%(cohorts)b::int[])
    AND status = 'replayed';
