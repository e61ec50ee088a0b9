-- Note that a quarantined row was replayed; the same once more changes nothing.
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
RETURNING quarantine_id
