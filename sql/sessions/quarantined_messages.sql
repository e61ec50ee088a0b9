-- Read quarantined messages, by client and in the order of its messages.
-- params: quarantine_ids, status, reason, client_id, maximum; a null matches everything
-- rows: (quarantine_id, reason, client_id, serial_number, topic, time, packet_id, packet_type, qos, payload,
-- user_properties, retain, msg_expiry_interval, payload_format_indicator, content_type, response_topic,
-- correlation_data, quarantined_at, status, assigned_serial_number, assigned_packet_id, replayed_at, replayed_by)
-- index: session_quarantine_pkey, session_quarantine_client_id_idx
SELECT
    quarantine_id,
    reason,
    -- include: message_place
    payload,
    user_properties,
    -- include: message_properties
    quarantined_at,
    status,
    assigned_serial_number,
    assigned_packet_id,
    replayed_at,
    replayed_by
FROM queuekeeper.session_quarantine
WHERE
    (%(quarantine_ids)b::numeric[] IS NULL OR quarantine_id = any(%(quarantine_ids)b))
    AND (%(status)s::text IS NULL OR status = %(status)s)
    AND (%(reason)s::text IS NULL OR reason = %(reason)s)
    AND (%(client_id)s::text IS NULL OR client_id = %(client_id)s)
ORDER BY client_id COLLATE "C", serial_number, quarantine_id
LIMIT %(maximum)s
