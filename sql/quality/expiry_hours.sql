-- Read when the messages of a profile expire.
-- params: profile_id
-- rows: (hour_ms, messages, payload_bytes); hour 0 holds those without expiry
-- index: expiry_hours_pkey
SELECT
    hour_ms,
    messages,
    payload_bytes
FROM queuekeeper.expiry_hours
WHERE profile_id = %(profile_id)s
ORDER BY hour_ms
