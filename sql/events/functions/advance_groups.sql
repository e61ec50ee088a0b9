-- Move the cursors of groups that have nothing to read before an id to that id; return their number.
-- To be called before dispatches that old are retired, so that a cursor before the oldest dispatch always is a loss; a
-- group that has lost something stays where it is. No poll that began before the instant of the id may be at work.
CREATE FUNCTION pgmb.advance_groups(to_id varchar(24))
RETURNS int
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    advanced int;
BEGIN
    UPDATE subscription_groups AS g
    SET last_read_event_id = to_id
    WHERE
        g.last_read_event_id < to_id
        AND g.last_read_event_id >= (SELECT min(b.lower_bound) FROM partition_bounds('dispatches') AS b)
        AND NOT EXISTS (
            SELECT FROM pending_events(g.id, g.last_read_event_id, 1) AS p WHERE p.cursor < to_id
        );
    GET DIAGNOSTICS advanced = ROW_COUNT;
    RETURN advanced;
END
$$;
