-- Refuse a table whose partitions the broker does not maintain, since its functions run as the broker's owner.
CREATE FUNCTION pgmb.check_table(tbl regclass)
RETURNS void
LANGUAGE plpgsql
STABLE
SET search_path TO pgmb, pg_temp
AS $$
BEGIN
    IF tbl IS NULL OR tbl NOT IN ('events'::regclass, 'dispatches'::regclass, 'subscription_events'::regclass) THEN
        RAISE EXCEPTION 'table % is not one of the broker''s', coalesce(tbl::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'It maintains pgmb.events, pgmb.dispatches and pgmb.subscription_events.';
    END IF;
END
$$;
