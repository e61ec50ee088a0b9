-- List the packet ids that messages of a session have.
-- params: client_id
-- rows: (packet_id)
-- index: idx_device_publish_msg_packet_id
SELECT DISTINCT packet_id
FROM device_publish_msg
WHERE
    client_id = %(client_id)s
    AND packet_id BETWEEN 1 AND 65535
