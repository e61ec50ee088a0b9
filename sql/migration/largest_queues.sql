-- Bytes of the payloads of one client that a copy may hold in memory, besides the largest one; the largest sum first.
-- params: rows, limit; rows: messages of a client that are held at once
-- rows: (queued_bytes)
-- index: none; reads the table whole, and no payload
SELECT least(sum(sized.payload_bytes), %(rows)s * max(sized.payload_bytes)) - max(sized.payload_bytes) AS queued_bytes
FROM (
    SELECT
        client_id,
        octet_length(payload)::bigint AS payload_bytes
    FROM device_publish_msg
) AS sized
GROUP BY sized.client_id
ORDER BY queued_bytes DESC NULLS LAST
LIMIT %(limit)s
