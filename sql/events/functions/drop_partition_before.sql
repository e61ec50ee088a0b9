-- Drop the oldest partition of a table if it ends before an id and no group needs its rows; return its name or NULL.
-- This locks the table, so set lock_timeout. Rows that are committed before the lock are seen here, and kept.
CREATE FUNCTION pgmb.drop_partition_before(tbl regclass, expired_id varchar(24))
RETURNS text
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    oldest record;
BEGIN
    PERFORM check_table(tbl);
    PERFORM check_isolation();
    IF NOT pg_try_advisory_xact_lock(hashtextextended('pgmb.maintain/' || tbl::oid, 0)) THEN
        RAISE NOTICE 'partitions of % are being maintained by another session', tbl;
        RETURN NULL;
    END IF;
    SELECT b.* INTO oldest FROM partition_bounds(tbl) AS b ORDER BY b.lower_bound LIMIT 1;
    IF oldest.upper_bound IS NULL OR oldest.upper_bound > expired_id THEN
        RETURN NULL;
    END IF;
    IF oldest.upper_bound > retention_limit() THEN
        RAISE NOTICE 'partition % is kept: something in it is not delivered yet', oldest.partition;
        RETURN NULL;
    END IF;
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', tbl);
    IF oldest.upper_bound > retention_limit() THEN
        RETURN NULL;
    END IF;
    IF tbl = 'dispatches'::regclass THEN
        PERFORM advance_groups(oldest.upper_bound);
    END IF;
    EXECUTE format('DROP TABLE %s', oldest.partition);
    RETURN oldest.partition::text;
END
$$;
