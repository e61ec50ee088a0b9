-- Return the id that an event would have now.
-- params: none
-- rows: one
-- index: none
SELECT pgmb.create_event_id(clock_timestamp(), 0) AS id
