-- Empty the vendor's tables; only a sample asks for this.
-- params: none
-- rows: none
-- index: none
TRUNCATE device_publish_msg, device_session_ctx
