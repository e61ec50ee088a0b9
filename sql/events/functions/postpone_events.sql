-- Move events that are not due out of the log; a poll publishes them when they are due.
CREATE FUNCTION pgmb.postpone_events(event_ids varchar(24)[])
RETURNS void
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
SET plan_cache_mode TO force_custom_plan
AS $$
DECLARE
    min_id varchar;
    max_id varchar;
    postponed events[];
BEGIN
    SELECT min(u.id), max(u.id) INTO min_id, max_id FROM unnest(event_ids) AS u(id);
    WITH taken AS (
        DELETE FROM events AS e
        WHERE e.id = ANY(event_ids) AND e.id BETWEEN min_id AND max_id
        RETURNING e AS row
    )

    SELECT array_agg(t.row) INTO postponed FROM taken AS t;
    PERFORM schedule_postponed(postponed);
END
$$;
