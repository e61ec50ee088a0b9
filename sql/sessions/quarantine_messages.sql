-- Move messages that cannot be delivered to the quarantine, whole.
-- params: client_id, serials, reasons
-- rows: one: (messages put aside)
-- index: device_publish_msg_pkey
WITH doomed AS (
    SELECT
        msg.client_id,
        msg.serial_number,
        wanted.reason
    FROM unnest(%(serials)b::bigint[], %(reasons)b::text[]) AS wanted (serial_number, reason)
    INNER JOIN device_publish_msg AS msg ON wanted.serial_number = msg.serial_number
    WHERE msg.client_id = %(client_id)s
    ORDER BY msg.serial_number
    FOR UPDATE OF msg
),

removed AS (
    DELETE FROM device_publish_msg AS msg
    USING doomed
    WHERE (msg.client_id, msg.serial_number) = (doomed.client_id, doomed.serial_number)
    RETURNING
        doomed.reason, msg.client_id, msg.serial_number, msg.topic, msg.time, msg.packet_id, msg.packet_type, msg.qos,
        msg.payload, msg.user_properties, msg.retain, msg.msg_expiry_interval, msg.payload_format_indicator,
        msg.content_type, msg.response_topic, msg.correlation_data
),

kept AS (
    INSERT INTO queuekeeper.session_quarantine (
        reason, client_id, serial_number, topic, time, packet_id, packet_type, qos, payload, user_properties, retain,
        msg_expiry_interval, payload_format_indicator, content_type, response_topic, correlation_data
    )
    SELECT removed.*
    FROM removed
    RETURNING serial_number
)

SELECT count(*) AS messages
FROM kept
