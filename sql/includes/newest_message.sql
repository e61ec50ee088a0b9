-- From the newest message of a wanted client.
FROM device_publish_msg
WHERE client_id = wanted.client_id
ORDER BY serial_number DESC
LIMIT 1
