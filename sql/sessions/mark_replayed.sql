-- Record that a quarantined message is in its session again; repeating this changes nothing.
-- params: quarantine_id, serial, packet_id, person
-- rows: at most one: (quarantine_id) when it was open
-- index: session_quarantine_pkey
UPDATE queuekeeper.session_quarantine
SET
    status = 'replayed',
    assigned_serial_number = %(serial)s,
    assigned_packet_id = %(packet_id)s,
    replayed_at = clock_timestamp(),
    replayed_by = %(person)s
WHERE
    quarantine_id = %(quarantine_id)s
    AND status = 'open'
RETURNING quarantine_id
