-- Return the ranges that a table's partitions cover without a gap, lowest first. A range that ends with the
-- overflow has no upper bound.
CREATE FUNCTION pgmb.get_partitions_and_bounds(table_id regclass)
RETURNS TABLE (lower_bound pgmb.event_id, upper_bound pgmb.event_id, partition_ids oid[])
LANGUAGE sql
STABLE
SET search_path TO pgmb, pg_temp
AS $$
    SELECT
        min(g.lower_bound),
        CASE WHEN count(g.upper_bound) = count(*) THEN max(g.upper_bound) END,
        array_agg(g.partition::oid ORDER BY g.lower_bound)
    FROM (
        SELECT
            s.*,
            count(*) FILTER (WHERE s.has_gap) OVER (ORDER BY s.lower_bound) AS stretch
        FROM (
            SELECT
                b.*,
                b.lower_bound > lag(b.upper_bound) OVER (ORDER BY b.lower_bound) AS has_gap
            FROM partition_bounds(table_id) AS b
        ) AS s
    ) AS g
    GROUP BY g.stretch
    ORDER BY min(g.lower_bound)
$$;
