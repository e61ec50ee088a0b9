-- Return the partitions of a table and their bounds, lowest first, as the catalog has them: names mean nothing.
-- The overflow has no upper bound.
CREATE FUNCTION pgmb.partition_bounds(tbl regclass)
RETURNS TABLE (partition regclass, lower_bound text, upper_bound text)
LANGUAGE sql
STABLE
SET search_path TO pgmb, pg_temp
AS $$
    SELECT
        c.oid::regclass,
        b.found[1],
        b.found[2]
    FROM pg_inherits AS i
    INNER JOIN pg_class AS c ON c.oid = i.inhrelid
    CROSS JOIN LATERAL regexp_match(
        pg_get_expr(c.relpartbound, c.oid), $re$^FOR VALUES FROM \('([^']*)'\) TO \((?:'([^']*)'|MAXVALUE)\)$re$
    ) AS b(found)
    WHERE i.inhparent = tbl AND NOT i.inhdetachpending
    ORDER BY b.found[1]
$$;
