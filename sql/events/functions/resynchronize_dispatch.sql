-- Continue dispatching after the database was restored on another server, whose transaction ids differ from those of
-- the
-- rows; return the number of events that wait to be dispatched. Harmless if nothing is wrong.
-- Events that are in no dispatch are dispatched by the next polls, and no row is found again when transaction ids
-- repeat.
CREATE FUNCTION pgmb.resynchronize_dispatch()
RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    waiting bigint;
BEGIN
    -- Nobody publishes or polls meanwhile: every row here is visible, or came to nothing.
    PERFORM pg_advisory_xact_lock(hashtextextended('pgmb.poll_for_events', 0));
    LOCK TABLE events IN SHARE ROW EXCLUSIVE MODE;
    INSERT INTO due_events (event_id)
    SELECT e.id
    FROM events AS e
    WHERE NOT EXISTS (
        SELECT FROM dispatches AS d CROSS JOIN LATERAL unnest(d.event_ids) AS u(id) WHERE u.id = e.id
    )
    ON CONFLICT (event_id) DO NOTHING;
    GET DIAGNOSTICS waiting = ROW_COUNT;
    UPDATE events SET transaction_id = '0' WHERE transaction_id <> '0';
    UPDATE dispatch_state SET
        system_identifier = server_identifier(),
        dispatched = take_snapshot(),
        open_window = NULL,
        window_transaction_id = NULL,
        window_event_id = NULL;
    RETURN waiting;
END
$$;
