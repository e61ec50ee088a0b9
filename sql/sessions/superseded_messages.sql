-- List messages of a page whose packet id a newer message of the session has too: ids have wrapped.
-- params: client_id, first_serial, last_serial
-- rows: (serial)
-- index: device_publish_msg_pkey, idx_device_publish_msg_packet_id
SELECT msg.serial_number
FROM device_publish_msg AS msg
WHERE
    msg.client_id = %(client_id)s
    AND msg.serial_number BETWEEN %(first_serial)s AND %(last_serial)s
    AND EXISTS (
        SELECT 1 AS one
        FROM device_publish_msg AS newer
        WHERE
            newer.client_id = %(client_id)s
            AND newer.packet_id = msg.packet_id
            AND newer.serial_number > msg.serial_number
    )
