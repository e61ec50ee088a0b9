-- Queue events to be dispatched again by the next poll, to all subscriptions whose condition holds; return their
-- number. Ids without a stored event, and events that wait for this already, are not counted.
CREATE FUNCTION pgmb.reenqueue_events(event_ids pgmb.event_id[])
RETURNS int
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    reenqueued int;
BEGIN
    INSERT INTO due_events (event_id, due_at)
    SELECT e.id, clock_timestamp()
    FROM unnest(reenqueue_events.event_ids) AS wanted (id)
    -- A lookup for each; no payload is read, so that the caller need not be allowed to.
    CROSS JOIN LATERAL (SELECT stored.id FROM events AS stored WHERE stored.id = wanted.id LIMIT 1) AS e
    ON CONFLICT (event_id) DO NOTHING;
    GET DIAGNOSTICS reenqueued = ROW_COUNT;
    PERFORM pg_notify('pgmb_events', '');
    RETURN reenqueued;
END
$$;
