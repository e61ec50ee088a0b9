-- Return the partition of a table that holds what is published at an instant, by its bounds.
CREATE FUNCTION pgmb.get_current_partition(table_id regclass, current_ts timestamptz DEFAULT now())
RETURNS regclass
LANGUAGE sql
STABLE
SET search_path TO pgmb, pg_temp
AS $$
    SELECT b.partition
    FROM partition_bounds(table_id) AS b
    WHERE
        b.lower_bound <= create_event_id(current_ts, 0)
        AND (b.upper_bound IS NULL OR b.upper_bound > create_event_id(current_ts, 0))
$$;
