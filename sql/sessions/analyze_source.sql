-- Tell the planner what the vendor's tables hold.
-- params: none
-- rows: none
-- index: none
ANALYZE device_publish_msg, device_session_ctx
