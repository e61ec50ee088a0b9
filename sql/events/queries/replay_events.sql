-- Read again what a subscription got after an event.
-- params: group_id, subscription_id, after_event_id, limit
-- rows: events, in the order of dispatch
-- index: none
SELECT
    r.id,
    r.topic,
    r.payload,
    r.metadata
FROM pgmb.replay_events(%(group_id)s, %(subscription_id)s, %(after_event_id)s, %(limit)s) AS r
