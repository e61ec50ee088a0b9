-- Return the cursor at which a new group begins: now, or after the last dispatch if the clock has gone back.
CREATE FUNCTION pgmb.create_group_cursor()
RETURNS pgmb.event_id
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path TO pgmb, pg_temp
AS $$
    SELECT greatest(
        create_event_id(now(), 0)::text,
        (SELECT left(st.last_dispatch_id, 15) || 'fffffffff' FROM dispatch_state AS st)
    )
$$;
