-- Prepare the overflow of events, which may hold any number of rows, to become a partition. A constraint that is
-- validated while other sessions write saves a later search for wrong rows, for which they would have to wait. A
-- trigger diverts later rows, which the constraint would refuse. Returns false when there is nothing to prepare because
-- the overflow begins in the future. The bound is at least one interval ahead; extend_partitions removes both.
CREATE FUNCTION pgmb.guard_overflow()
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    width CONSTANT interval := get_config_value('partition_interval')::interval;
    stop_id CONSTANT text := create_event_id(
        date_bin(width, clock_timestamp(), '2000-01-01 00:00:00+00') + 2 * width, 0
    );
    overflow regclass;
    start_id text;
BEGIN
    SELECT b.partition, b.lower_bound
    INTO overflow, start_id
    FROM partition_bounds('events') AS b
    WHERE b.upper_bound IS NULL AND b.lower_bound <= create_event_id(clock_timestamp(), 0);
    IF overflow IS NULL THEN
        RETURN FALSE;
    END IF;
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', overflow);
    EXECUTE format(
        'CREATE OR REPLACE TRIGGER guard BEFORE INSERT ON %s '
        'FOR EACH ROW EXECUTE FUNCTION divert_future_events(%L)', overflow, stop_id
    );
    EXECUTE format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS guard', overflow);
    EXECUTE format(
        'ALTER TABLE %s ADD CONSTRAINT guard CHECK (id >= %L::event_id AND id < %L::event_id) NOT VALID',
        overflow, start_id, stop_id
    );
    RETURN TRUE;
END
$$;
