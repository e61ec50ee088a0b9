-- Wake the dispatcher after a COPY.
-- params: none
-- rows: one, without meaning
-- index: none
SELECT pg_notify('pgmb_events', '')
