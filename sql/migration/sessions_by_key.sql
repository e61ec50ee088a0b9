-- Session rows by client id.
-- Parameters: client_ids text[].
-- Rows: (client_id, last_packet_id). Uses device_session_ctx_pkey.
SELECT
    client_id,
    last_packet_id
FROM device_session_ctx
WHERE client_id = any(%(client_ids)b::text[])
