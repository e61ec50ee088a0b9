-- Read quarantined rows, by client and in the order of its messages.
-- params: plan_id, status, reason, client_id, maximum; a null matches everything
-- rows: (quarantine_id, cohort, kind, reason, detail, client_id, serial_number, topic, time, packet_id,
-- packet_type, qos, payload, user_properties, retain, msg_expiry_interval, payload_format_indicator,
-- content_type, response_topic, correlation_data, last_packet_id, status, assigned_packet_id, replayed_at,
-- quarantined_at)
-- index: quarantine_message_key
SELECT
    quarantine_id,
    cohort,
    kind,
    reason,
    detail,
    -- include: message_place
    payload,
    user_properties,
    -- include: message_properties
    last_packet_id,
    status,
    assigned_packet_id,
    replayed_at,
    quarantined_at
FROM queuekeeper.quarantine
WHERE
    plan_id = %(plan_id)s
    AND (%(status)s::text IS NULL OR status = %(status)s)
    AND (%(reason)s::text IS NULL OR reason = %(reason)s)
    AND (%(client_id)s::text IS NULL OR client_id = %(client_id)s)
ORDER BY client_id COLLATE "C", serial_number NULLS FIRST, quarantine_id
LIMIT %(maximum)s
