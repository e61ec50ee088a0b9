-- Have changes of device_session_ctx ask nobody any more.
-- params: none
-- rows: none
-- index: none
DROP TRIGGER IF EXISTS queuekeeper_refuse_moved_session ON device_session_ctx
