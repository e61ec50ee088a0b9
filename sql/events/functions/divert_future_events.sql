-- Put a row whose time has not come into scheduled_events instead, for the trigger that guard_overflow makes.
-- Where maintenance never came back, time reaches the bound of its constraint, and the row of this moment would not be
-- let in: then it gets a number of the last instant before the bound for its id. So nobody's insert fails or returns
-- nothing, and what a session publishes stays in order.
CREATE FUNCTION pgmb.divert_future_events()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path TO pgmb, pg_temp
AS $$
BEGIN
    IF new.id < TG_ARGV[0] THEN
        RETURN new;
    END IF;
    IF new.id <= create_event_id(clock_timestamp(), 68719476735) THEN
        new.id := create_event_id(
            extract_date_from_event_id(TG_ARGV[0]) - interval '1 microsecond', nextval('event_numbers')
        );
        RETURN new;
    END IF;
    PERFORM schedule_postponed(ARRAY[new]::events[]);
    RETURN NULL;
END
$$;
