-- Return the name of a table's partition that begins at an instant, readable in UTC. Only the catalog says what a
-- partition covers: see get_current_partition and get_partitions_and_bounds.
CREATE FUNCTION pgmb.get_time_partition_name(table_id regclass, ts timestamptz)
RETURNS text
LANGUAGE sql
STABLE
STRICT
PARALLEL SAFE
AS $$
    SELECT table_id::text || '_' || to_char(ts AT TIME ZONE 'UTC', 'YYYYMMDDHH24MI')
$$;
