-- Refuse a transaction with one snapshot for all its statements. A statement that has waited for a lock must see what
-- was committed until then: otherwise undispatched events could be dropped, or missed events skipped.
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
