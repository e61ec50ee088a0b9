-- Describe one page of a session's messages in the order of delivery, without their content.
-- params: client_id, offset, limit
-- rows: (serial, packet id, type, qos, topic, payload bytes, time, expires at); the last is null without an expiry
-- index: device_publish_msg_pkey
SELECT
    serial_number,
    packet_id,
    packet_type,
    qos,
    topic,
    octet_length(payload) AS payload_bytes,
    time AS time_ms,
    -- MQTT's interval is unsigned; the column is the signed view of it. Broken rows hold times that overflow.
    time::numeric + 1000 * (
        msg_expiry_interval::bigint + CASE WHEN msg_expiry_interval < 0 THEN 4294967296 ELSE 0 END
    ) AS expires_at_ms
FROM device_publish_msg
WHERE client_id = %(client_id)s
ORDER BY serial_number
LIMIT %(limit)s OFFSET %(offset)s
