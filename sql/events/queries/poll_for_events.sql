-- Dispatch one chunk of events.
-- params: none
-- rows: matches made
-- index: none
SELECT pgmb.poll_for_events() AS matches
