-- Judge conditions as a subscription's is judged. Nothing needs to be prepared: a poll reads the conditions of the
-- subscriptions that there are.
CREATE FUNCTION pgmb.prepare_poll_for_events_fn(sql_statements text[])
RETURNS void
LANGUAGE plpgsql
STRICT
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    condition text;
    failure text;
BEGIN
    FOREACH condition IN ARRAY sql_statements LOOP
        failure := (SELECT c.failure FROM check_condition(condition) AS c);
        IF failure IS NOT NULL THEN
            RAISE EXCEPTION 'condition "%" is refused: %', condition, failure
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END LOOP;
END
$$;
