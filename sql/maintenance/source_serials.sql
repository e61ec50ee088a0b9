-- Read the order of a client's messages in the source.
-- params: client_id
-- rows: (serial_number, packet_id, time), in the order of delivery
-- index: device_publish_msg_pkey
SELECT
    serial_number,
    packet_id,
    time
FROM device_publish_msg
WHERE client_id = %(client_id)s
ORDER BY serial_number
