-- Return events by their ids, in the order of the ids. Bounds let the planner leave out partitions.
CREATE FUNCTION pgmb.read_events(event_ids pgmb.event_id[])
RETURNS SETOF pgmb.events
LANGUAGE plpgsql
STRICT
STABLE
PARALLEL SAFE
SET search_path TO pgmb, pg_temp
SET plan_cache_mode TO force_custom_plan
SET enable_seqscan TO off
AS $$
DECLARE
    min_id event_id;
    max_id event_id;
BEGIN
    SELECT min(u.eid), max(u.eid) INTO min_id, max_id FROM unnest(event_ids) AS u(eid);
    RETURN QUERY
    SELECT e.*
    FROM (SELECT DISTINCT u.eid FROM unnest(event_ids) AS u(eid)) AS wanted
    CROSS JOIN LATERAL (
        SELECT stored.* FROM events AS stored WHERE stored.id = wanted.eid AND stored.id BETWEEN min_id AND max_id LIMIT 1
    ) AS e
    ORDER BY e.id;
END
$$;
