-- Nobody may call what runs as the broker's owner unless told so; the role of conditions reads subscriptions, and calls
-- the pure functions that a condition may name.
DO $$
BEGIN
    REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA pgmb FROM public;
    GRANT USAGE ON SCHEMA pgmb TO pgmb_reader;
    GRANT SELECT ON pgmb.subscriptions TO pgmb_reader;
    GRANT EXECUTE ON FUNCTION
        pgmb.condition_refusal(text), pgmb.hashtext(text), pgmb.create_event_id(timestamptz, bigint),
        pgmb.extract_date_from_event_id(pgmb.event_id)
        TO pgmb_reader;
END
$$;
