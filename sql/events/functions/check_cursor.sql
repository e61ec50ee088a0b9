-- Refuse a text that is not a cursor, or a cursor that dispatching has not reached: events would be skipped.
CREATE FUNCTION pgmb.check_cursor(cursor varchar(24))
RETURNS void
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path TO pgmb, pg_temp
AS $$
BEGIN
    IF cursor IS NULL OR cursor !~ '^pm[0-9a-f]{22}$' THEN
        RAISE EXCEPTION 'cursor % is not one of this broker', coalesce(cursor, 'NULL')
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Take next_cursor of read_next_events, or create_event_id(instant, 0).';
    END IF;
    IF cursor > create_event_id(clock_timestamp(), 68719476735)
        AND cursor > (SELECT left(st.last_dispatch_id, 15) || 'fffffffff' FROM dispatch_state AS st) THEN
        RAISE EXCEPTION 'cursor % lies in the future: %', cursor, extract_date_from_event_id(cursor)
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Whatever is dispatched until then would be passed over: take an earlier cursor.';
    END IF;
END
$$;
