-- Return the next events of a group, in the order of dispatch, each with all of the group's subscriptions it is for.
-- The first call makes this session the group's reader until set_group_cursor(.., release_lock => true),
-- release_group_lock or the session's end; while another session is, it returns nothing. With peek nothing is owned.
-- Ids that lie close together are read in one go along the index, for less than half of what lookups cost. Where the
-- retry of an old event or a selective condition spreads them, each is looked up.
CREATE FUNCTION pgmb.read_next_events(
    gid varchar(48),
    cursor pgmb.event_id DEFAULT NULL,
    chunk_size int DEFAULT pgmb.get_config_value('poll_chunk_size')::int,
    peek boolean DEFAULT FALSE
)
RETURNS TABLE (
    id pgmb.event_id,
    topic varchar(255),
    payload jsonb,
    metadata jsonb,
    subscription_ids pgmb.subscription_id[],
    next_cursor pgmb.event_id
)
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
SET plan_cache_mode TO force_generic_plan
SET enable_hashjoin TO on
SET enable_nestloop TO off
SET enable_seqscan TO off
SET jit TO off
AS $$
#variable_conflict use_column
DECLARE
    read_to varchar := read_next_events.cursor;
    pending pending_event[];
    min_id varchar;
    max_id varchar;
    most int;
BEGIN
    IF chunk_size IS NULL OR chunk_size < 1 THEN
        RAISE EXCEPTION 'chunk_size is %: ask for 1 event or more', chunk_size
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF read_to IS NOT NULL THEN
        PERFORM check_cursor(read_to);
    END IF;
    IF NOT peek AND NOT holds_group_lock(gid) AND NOT pg_try_advisory_lock(group_lock_key(gid)) THEN
        RETURN;
    END IF;
    IF read_to IS NULL THEN
        SELECT g.last_read_event_id INTO read_to FROM subscription_groups AS g WHERE g.id = gid;
    END IF;
    WHILE read_to IS NOT NULL LOOP
        SELECT array_agg(p), min(p.event_id), max(p.event_id), max(p.cursor)
        INTO pending, min_id, max_id, read_to
        FROM pending_events(gid, read_to, chunk_size) AS p;
        EXIT WHEN pending IS NULL;

        most := 2 * cardinality(pending);
        IF (
            SELECT count(*) <= most
            FROM (SELECT FROM events AS e WHERE e.id BETWEEN min_id AND max_id LIMIT most + 1) AS stretch
        ) THEN
            RETURN QUERY
            SELECT
                e.id,
                e.topic,
                e.payload,
                e.metadata,
                p.subscription_ids::subscription_id[],
                read_to::event_id
            FROM unnest(pending) WITH ORDINALITY AS p(cursor, event_id, subscription_ids, number)
            INNER JOIN events AS e ON e.id = p.event_id
            WHERE e.id BETWEEN min_id AND max_id
            ORDER BY p.number;
        ELSE
            RETURN QUERY
            SELECT
                e.id,
                e.topic,
                e.payload,
                e.metadata,
                p.subscription_ids::subscription_id[],
                read_to::event_id
            FROM unnest(pending) WITH ORDINALITY AS p(cursor, event_id, subscription_ids, number)
            -- A lookup for each, whatever the planner thinks; the bounds leave out partitions.
            CROSS JOIN LATERAL (
                SELECT stored.*
                FROM events AS stored
                WHERE stored.id = p.event_id AND stored.id BETWEEN min_id AND max_id
                LIMIT 1
            ) AS e
            ORDER BY p.number;
        END IF;

        -- Only an operator who drops what was not delivered can have taken all of them away: go on behind them.
        EXIT WHEN FOUND;
    END LOOP;
END
$$;
