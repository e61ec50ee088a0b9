-- Tell whether the vendor's tables hold anything.
-- params: none
-- rows: one: (boolean)
-- index: none
SELECT
    EXISTS (SELECT 1 AS found FROM device_publish_msg)
    OR EXISTS (SELECT 1 AS found FROM device_session_ctx) AS has_rows
