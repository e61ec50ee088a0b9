-- Refuse a transaction that looks at one state of the tables for all of its time. Who waits for a lock has to see what
-- was committed until then: else what nobody has dispatched would be dropped, or what was missed passed over.
CREATE FUNCTION pgmb.check_isolation()
RETURNS void
LANGUAGE plpgsql
STABLE
SET search_path TO pgmb, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'this does not work at isolation level %', current_setting('transaction_isolation')
            USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'It would not see what others commit: SET default_transaction_isolation TO ''read committed''.';
    END IF;
END
$$;
