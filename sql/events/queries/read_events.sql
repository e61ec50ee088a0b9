-- Read stored events.
-- params: ids
-- rows: events, in the order of their ids
-- index: none
SELECT
    r.id,
    r.topic,
    r.payload,
    r.metadata
FROM pgmb.read_events(%(ids)s::pgmb.event_id[]) AS r
