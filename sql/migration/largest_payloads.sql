-- Sizes of the largest payloads, the largest one first; a copy reads every row, whatever its fate.
-- params: limit
-- rows: (payload_bytes)
-- index: none; reads the table whole, and no payload
SELECT octet_length(payload) AS payload_bytes
FROM device_publish_msg
ORDER BY payload_bytes DESC NULLS LAST
LIMIT %(limit)s
