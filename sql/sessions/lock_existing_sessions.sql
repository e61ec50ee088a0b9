-- Lock those of some sessions that exist until the transaction ends, in the same order as lock_sessions.sql.
-- params: client_ids
-- rows: (client_id)
-- index: device_session_ctx_pkey
SELECT client_id
FROM device_session_ctx
WHERE client_id = any(%(client_ids)b::varchar[])
ORDER BY client_id
FOR UPDATE
