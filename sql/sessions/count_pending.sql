-- Return the number of messages of a session, and the serial of the newest.
-- params: client_id
-- rows: one: (messages, highest serial or null)
-- index: device_publish_msg_pkey
SELECT
    count(*) AS messages,
    max(serial_number) AS highest_serial
FROM device_publish_msg
WHERE client_id = %(client_id)s
