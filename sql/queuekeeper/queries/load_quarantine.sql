-- Take in quarantined rows.
-- params: none; rows follow in the order of the columns
-- rows: none
-- index: none
COPY queuekeeper.quarantine (
    plan_id, cohort, kind, reason, detail, client_id, serial_number, topic, time, packet_id, packet_type, qos, payload,
    user_properties, retain, msg_expiry_interval, payload_format_indicator, content_type, response_topic,
    correlation_data, last_packet_id
) FROM STDIN (FORMAT "binary")
