-- Put a row that is not due into scheduled_events instead; for the trigger that guard_overflow creates. If maintenance
-- has stopped, time reaches the bound of the constraint, which would refuse the rows of this moment: then the row gets
-- an id of the last instant before the bound. So inserts neither fail nor return nothing, and the events of a session
-- stay in order.
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
