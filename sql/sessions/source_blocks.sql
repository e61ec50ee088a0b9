-- Tell how many blocks the vendor's messages take.
-- params: none
-- rows: one: (blocks)
-- index: none
SELECT pg_relation_size('device_publish_msg') / current_setting('block_size')::int AS blocks
