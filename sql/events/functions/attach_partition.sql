-- Make a table the partition for the ids of a stretch of time, without an end when upper_at is null.
CREATE FUNCTION pgmb.attach_partition(tbl regclass, partition regclass, lower_at timestamptz, upper_at timestamptz)
RETURNS void
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
BEGIN
    EXECUTE format(
        'ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%s)',
        tbl, partition, create_event_id(lower_at, 0),
        CASE WHEN upper_at IS NULL THEN 'MAXVALUE' ELSE quote_literal(create_event_id(upper_at, 0)) END
    );
END
$$;
