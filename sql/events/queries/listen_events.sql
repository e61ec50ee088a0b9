-- Be notified when events were published.
-- params: none
-- rows: none
-- index: none
LISTEN pgmb_events
