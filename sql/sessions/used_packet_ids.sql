-- List the packet ids that live messages of a session have.
-- params: client_id, default_ttl_s
-- rows: (packet_id)
-- index: device_publish_msg_pkey
SELECT DISTINCT packet_id
FROM device_publish_msg
WHERE
    client_id = %(client_id)s
    AND packet_id BETWEEN 1 AND 65535
    AND queuekeeper.message_expires_at_ms(time, msg_expiry_interval, %(default_ttl_s)s)
    > extract(EPOCH FROM statement_timestamp()) * 1000
