-- Be notified when events were dispatched.
-- params: none
-- rows: none
-- index: none
LISTEN pgmb_dispatched
