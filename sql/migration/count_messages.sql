-- Number of messages in the source.
-- Row: (messages). Reads an index or the whole table.
SELECT count(*) AS messages
FROM device_publish_msg
