-- List stored events that no poll will find any more and that are in no dispatch: oldest first, those alone that are as
-- young as the oldest dispatch that is kept.
-- params: maximum
-- rows: (event_id)
-- index: events_pkey from there on, all dispatches
SELECT cast(events.id AS text) AS event_id
FROM pgmb.events AS events
CROSS JOIN pgmb.dispatch_state AS state
WHERE
    events.id >= (
        SELECT min(bounds.lower_bound)
        FROM pgmb.partition_bounds('pgmb.dispatches') AS bounds
    )
    AND pg_visible_in_snapshot(events.transaction_id, state.dispatched)
    AND NOT EXISTS (
        SELECT FROM pgmb.dispatches AS dispatches
        CROSS JOIN LATERAL unnest(dispatches.event_ids) AS dispatched (event_id)
        WHERE dispatched.event_id = events.id
    )
    AND NOT EXISTS (
        SELECT FROM pgmb.due_events AS due
        WHERE due.event_id = events.id
    )
ORDER BY events.id
LIMIT %(maximum)s
