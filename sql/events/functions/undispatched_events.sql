-- Return the oldest events of a table of events that no poll has taken yet, at most so many.
-- The table is events, or one that was a partition of it: what committed while it was detached is found so.
CREATE FUNCTION pgmb.undispatched_events(tbl regclass DEFAULT 'pgmb.events', max_events int DEFAULT 1)
RETURNS SETOF pgmb.event_id
LANGUAGE plpgsql
STABLE
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    past dispatch_state;
BEGIN
    SELECT st.* INTO STRICT past FROM dispatch_state AS st;
    RETURN QUERY EXECUTE format(
        'SELECT e.id FROM %s AS e '
        'WHERE (e.transaction_id = ANY($1) OR e.transaction_id >= $2) '
        'AND ($3 IS NULL OR NOT pg_visible_in_snapshot(e.transaction_id, $3) '
        'OR (e.transaction_id, e.id) > ($4, $5)) '
        'ORDER BY e.id LIMIT $6', tbl
    )
    USING
        ARRAY(SELECT x.id FROM pg_snapshot_xip(past.dispatched) AS x(id)), pg_snapshot_xmax(past.dispatched),
        past.open_window, past.window_transaction_id, past.window_event_id, max_events;
END
$$;
