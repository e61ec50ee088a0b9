-- Have every change of a row of device_publish_msg ask who owns the session.
-- params: none
-- rows: none
-- index: none
CREATE OR REPLACE TRIGGER queuekeeper_refuse_moved_session BEFORE INSERT OR UPDATE OR DELETE ON device_publish_msg
FOR EACH ROW EXECUTE FUNCTION queuekeeper.refuse_moved_session()
