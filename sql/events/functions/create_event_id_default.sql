-- Return an id of this moment.
CREATE FUNCTION pgmb.create_event_id_default()
RETURNS pgmb.event_id
LANGUAGE sql
AS $$
    SELECT pgmb.create_event_id(clock_timestamp(), nextval('pgmb.event_numbers'))
$$;
