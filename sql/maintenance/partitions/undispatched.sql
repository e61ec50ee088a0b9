-- Find an event that no poll has taken in a table that was a partition of the event broker's.
-- params: oid
-- rows: (event_id)
-- index: events_transaction_id_idx
SELECT event_id
FROM pgmb.undispatched_events(%(oid)s::oid::regclass, 1) AS event_id
