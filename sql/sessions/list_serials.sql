-- List the serials of all messages of a session, whatever else they hold.
-- params: client_id
-- rows: (serial)
-- index: device_publish_msg_pkey
SELECT serial_number
FROM device_publish_msg
WHERE client_id = %(client_id)s
ORDER BY serial_number
