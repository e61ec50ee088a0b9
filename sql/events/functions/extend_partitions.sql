-- Create partitions of a table of the broker by the settings, at most 200 at a time, and return their number; see
-- extend_partitions_by.
CREATE FUNCTION pgmb.extend_partitions(tbl regclass, current_ts timestamptz DEFAULT now())
RETURNS int
LANGUAGE sql
SECURITY DEFINER
SET search_path TO pgmb, pg_temp
AS $$
    SELECT extend_partitions_by(
        tbl, current_ts, get_config_value('partition_interval')::interval,
        get_config_value('future_intervals_to_create')::interval
    )
$$;
