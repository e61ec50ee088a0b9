-- Drop the oldest partition of a table of the broker if it is past the retention of the settings and no group needs its
-- rows; return its name, or NULL. See drop_partition_before.
CREATE FUNCTION pgmb.drop_expired_partition(tbl regclass, current_ts timestamptz DEFAULT now())
RETURNS text
LANGUAGE sql
SECURITY DEFINER
SET search_path TO pgmb, pg_temp
AS $$
    SELECT drop_partition_before(
        tbl, create_event_id(current_ts - get_config_value('partition_retention_period')::interval, 0)
    )
$$;
