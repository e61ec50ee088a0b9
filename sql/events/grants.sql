-- Functions that run as the broker's owner may be called only with an explicit grant; the role of conditions may read
-- subscriptions and call the pure functions that a condition may use.
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
