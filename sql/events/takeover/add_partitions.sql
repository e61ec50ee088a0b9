-- Give the new tables partitions for the past, with bounds of the old ones, at most a hundred each.
DO $$
DECLARE
    old_name text;
    new_name text;
    covered_from text;
    lowest_id text;
    bounds timestamptz[];
    place int;
    partition regclass;
BEGIN
    FOR old_name, new_name IN
        VALUES ('events', 'events'), ('subscription_events', 'dispatches'), ('subscription_events', 'subscription_events')
    LOOP
        SELECT min(b.lower_bound) INTO covered_from FROM pgmb.partition_bounds(format('pgmb.%I', new_name)::regclass) AS b;
        EXECUTE format('SELECT min(o.id::text COLLATE "C") FROM pgmb_original.%I AS o', old_name) INTO lowest_id;
        CONTINUE WHEN lowest_id IS NULL OR lowest_id >= covered_from;
        SELECT array_agg(p.lower_at ORDER BY p.lower_at)
        INTO bounds
        FROM (
            SELECT
                n.lower_at,
                row_number() OVER (ORDER BY n.lower_at) AS number,
                count(*) OVER () AS total
            FROM (
                SELECT pgmb.extract_date_from_event_id(b.lower_bound::pgmb.event_id) AS lower_at
                FROM pgmb.partition_bounds(format('pgmb_original.%I', old_name)::regclass) AS b
                WHERE b.lower_bound < covered_from AND b.upper_bound > lowest_id
                UNION
                -- Where a partition has no bound of an instant, its rows still need one.
                SELECT date_trunc('hour', pgmb.extract_date_from_event_id(lowest_id::pgmb.event_id))
            ) AS n
        ) AS p
        WHERE (p.number - 1) % greatest(1, ceil(p.total / 100.0)::int) = 0;
        FOR place IN 1..cardinality(bounds) LOOP
            partition := pgmb.create_partition(
                format('pgmb.%I', new_name)::regclass, to_char(bounds[place], 'YYYYMMDDHH24MI')
            );
            PERFORM pgmb.attach_partition(
                format('pgmb.%I', new_name)::regclass, partition, bounds[place],
                coalesce(bounds[place + 1], pgmb.extract_date_from_event_id(covered_from::pgmb.event_id))
            );
        END LOOP;
    END LOOP;
END
$$
