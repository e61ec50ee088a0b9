-- Describe one page of a session's messages in the order of delivery, without their content.
-- params: client_id, offset, limit, default_ttl_s
-- rows: (expires at, serial, packet id, type, topic, payload bytes, qos, time, payload format indicator, content type,
-- response topic, correlation data bytes, user properties)
-- index: device_publish_msg_pkey
SELECT
    -- MQTT's interval is unsigned; the column is the signed view of it. Broken rows hold times that overflow.
    time::numeric + 1000 * coalesce(
        msg_expiry_interval::bigint + CASE WHEN msg_expiry_interval < 0 THEN 4294967296 ELSE 0 END,
        %(default_ttl_s)s::bigint
    ) AS expires_at_ms,
    serial_number,
    -- include: judged_columns
    user_properties
FROM device_publish_msg
WHERE client_id = %(client_id)s
ORDER BY serial_number
LIMIT %(limit)s OFFSET %(offset)s
