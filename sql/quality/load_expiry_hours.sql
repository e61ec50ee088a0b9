-- Take in when messages expire.
-- params: none; rows follow in the order of the columns
-- rows: none
-- index: none
COPY queuekeeper.expiry_hours (profile_id, hour_ms, messages, payload_bytes) FROM STDIN
