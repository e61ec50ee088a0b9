-- Create partitions of a table with a width, up to some time ahead, at most 200 at a time, and return their number.
-- They replace the overflow, which moves after them. This locks the table: set lock_timeout. If maintenance had stopped
-- for so long that time has reached the overflow, the overflow becomes a partition itself.
-- Bounds follow from the end of the coverage, never from names or from an earlier interval.
CREATE FUNCTION pgmb.extend_partitions_by(tbl regclass, current_ts timestamptz, width interval, ahead interval)
RETURNS int
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
SET timezone TO 'UTC'
AS $$
DECLARE
    at_most CONSTANT int := 200;
    origin CONSTANT timestamptz := '2000-01-01 00:00:00+00';
    name_format CONSTANT text := 'YYYYMMDDHH24MI';
    wanted_to CONSTANT timestamptz := date_bin(width, current_ts + ahead, origin) + width;
    overflow regclass;
    covered_to timestamptz;
    begins_at timestamptz;
    last_at timestamptz;
    lower_at timestamptz;
    lower_bounds timestamptz[] := '{}';
    partitions regclass[] := '{}';
    place int;
BEGIN
    PERFORM check_table(tbl);
    IF NOT pg_try_advisory_xact_lock(hashtextextended('pgmb.maintain/' || tbl::oid, 0)) THEN
        RAISE NOTICE 'partitions of % are being maintained by another session', tbl;
        RETURN 0;
    END IF;
    SELECT b.partition, extract_date_from_event_id(b.lower_bound)
    INTO overflow, covered_to
    FROM partition_bounds(tbl) AS b
    WHERE b.upper_bound IS NULL;
    IF overflow IS NULL THEN
        -- A new table. One partition lies behind now, for a clock that goes back a little.
        covered_to := date_bin(width, current_ts, origin) - width;
    END IF;
    IF covered_to >= wanted_to THEN
        RETURN 0;
    END IF;

    begins_at := covered_to;
    IF overflow IS NOT NULL AND covered_to <= clock_timestamp() THEN
        begins_at := date_bin(width, clock_timestamp(), origin) + 2 * width;
    END IF;
    IF overflow IS NOT NULL AND tbl <> 'events'::regclass THEN
        -- If the clock has gone back, dispatch ids continue from the last one, so rows may be ahead of the clock.
        EXECUTE format('SELECT extract_date_from_event_id(max(o.id)) FROM %s AS o', overflow) INTO last_at;
        IF last_at IS NOT NULL THEN
            begins_at := greatest(begins_at, date_bin(width, last_at, origin) + 2 * width);
        END IF;
    END IF;
    lower_at := begins_at;
    WHILE lower_at < wanted_to AND cardinality(partitions) < at_most LOOP
        lower_bounds := lower_bounds || lower_at;
        partitions := partitions || create_partition(tbl, to_char(lower_at, name_format));
        lower_at := date_bin(width, lower_at, origin) + width;
    END LOOP;

    IF overflow IS NULL THEN
        overflow := create_partition(tbl, 'overflow');
    ELSE
        -- From here to the end of the transaction, other sessions wait.
        EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', tbl);
        IF tbl = 'events'::regclass THEN
            PERFORM postpone_events(
                ARRAY(SELECT e.id FROM events AS e WHERE e.id >= create_event_id(begins_at, 0))::varchar[]
            );
        END IF;
        EXECUTE format('ALTER TABLE %s DETACH PARTITION %s', tbl, overflow);
        IF begins_at > covered_to THEN
            PERFORM attach_partition(tbl, overflow, covered_to, begins_at);
            EXECUTE format('DROP TRIGGER IF EXISTS guard ON %s', overflow);
            EXECUTE format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS guard', overflow);
            EXECUTE format('ALTER TABLE %s RENAME TO %I', overflow, partition_name(tbl, to_char(covered_to, name_format)));
            overflow := create_partition(tbl, 'overflow');
        END IF;
    END IF;
    FOR place IN 1..cardinality(partitions) LOOP
        PERFORM attach_partition(
            tbl, partitions[place], lower_bounds[place], coalesce(lower_bounds[place + 1], lower_at)
        );
    END LOOP;
    PERFORM attach_partition(tbl, overflow, lower_at, NULL);
    RETURN cardinality(partitions) + CASE WHEN begins_at > covered_to THEN 1 ELSE 0 END;
END
$$;
