-- Second half of guard_overflow, in its own transaction, during which other sessions can write.
CREATE FUNCTION pgmb.validate_overflow()
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    overflow regclass;
    stop_id text;
BEGIN
    SELECT b.partition, substring(pg_get_constraintdef(c.oid) FROM '.*(pm[0-9a-f]{22})')
    INTO overflow, stop_id
    FROM partition_bounds('events') AS b
    INNER JOIN pg_constraint AS c ON c.conrelid = b.partition AND c.conname = 'guard'
    WHERE b.upper_bound IS NULL;
    IF FOUND THEN
        -- What was stored before the trigger came.
        PERFORM postpone_events(ARRAY(SELECT e.id FROM events AS e WHERE e.id >= stop_id)::varchar[]);
        EXECUTE format('ALTER TABLE %s VALIDATE CONSTRAINT guard', overflow);
    END IF;
END
$$;
