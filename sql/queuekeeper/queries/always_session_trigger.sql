-- Have the trigger of device_session_ctx fire also in a session that plays a replica.
-- params: none
-- rows: none
-- index: none
ALTER TABLE device_session_ctx ENABLE ALWAYS TRIGGER queuekeeper_refuse_moved_session
