-- Client ids of the source, each once: those with a session row, a message, or both.
-- params: none
-- rows: (client_id)
-- index: device_session_ctx_pkey, device_publish_msg_pkey
SELECT client_id FROM device_session_ctx
UNION
SELECT client_id FROM device_publish_msg
