-- State of a new installation: there are no events, none is dispatched, and partitions exist.
WITH state AS (
    INSERT INTO pgmb.dispatch_state (system_identifier, dispatched, last_dispatch_id, polled_at)
    VALUES (
        pgmb.server_identifier(), pgmb.take_snapshot(), pgmb.create_event_id(clock_timestamp(), 0), clock_timestamp()
    )
    RETURNING only_row
)

SELECT pgmb.extend_partitions(p.tbl::regclass)
FROM state
CROSS JOIN unnest(ARRAY['pgmb.events', 'pgmb.dispatches', 'pgmb.subscription_events']) AS p (tbl);
