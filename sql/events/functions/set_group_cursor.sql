-- Record how far a group has read; with release_lock, let another session read it, however often this one locked it.
CREATE FUNCTION pgmb.set_group_cursor(gid varchar(48), new_cursor pgmb.event_id, release_lock boolean)
RETURNS void
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
BEGIN
    PERFORM check_cursor(new_cursor);
    INSERT INTO subscription_groups AS g (id, last_read_event_id)
    VALUES (gid, new_cursor)
    ON CONFLICT (id) DO UPDATE SET last_read_event_id = excluded.last_read_event_id;
    IF release_lock THEN
        PERFORM release_group_lock(gid);
    END IF;
END
$$;
