-- Have the trigger of device_publish_msg fire also in a session that plays a replica.
-- params: none
-- rows: none
-- index: none
ALTER TABLE device_publish_msg ENABLE ALWAYS TRIGGER queuekeeper_refuse_moved_session
