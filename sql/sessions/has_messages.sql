-- Return whether there is any message in the vendor's table.
-- params: none
-- rows: one: (boolean)
-- index: none, it ends with the first row
SELECT exists(
    SELECT
    FROM device_publish_msg
) AS present
