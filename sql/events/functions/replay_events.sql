-- Return the events that a subscription was sent after an event, in the same order, whether they were read or not.
-- After means later in the order of dispatch. If from_event_id was not sent to it, events that were dispatched since
-- the instant of that id are returned, even if they were published before and committed late; so
-- create_event_id(instant, 0) can be given, too. More than max_events are refused.
CREATE FUNCTION pgmb.replay_events(
    gid varchar(48), sid varchar(24), from_event_id pgmb.event_id, max_events int
)
RETURNS SETOF pgmb.events
LANGUAGE plpgsql
STABLE
SET search_path TO pgmb, pg_temp
SET plan_cache_mode TO force_custom_plan
SET enable_nestloop TO off
AS $$
DECLARE
    -- Nothing is dispatched before its time has come, so no dispatch of it can have a smaller id.
    from_dispatch varchar := left(from_event_id, 15) || '000000000';
    first_dispatch varchar;
    delivery record;
    later event_id[];
    found_ids event_id[] := '{}';
BEGIN
    SELECT se.id INTO first_dispatch
    FROM subscription_events AS se
    INNER JOIN dispatches AS d ON d.id = se.id
    WHERE
        se.group_id = gid AND se.id >= from_dispatch AND se.subscription_id = sid
        AND d.id >= from_dispatch
        AND (
            (se.positions IS NULL AND from_event_id = ANY(d.event_ids))
            OR array_position(d.event_ids, from_event_id) = ANY(se.positions)
        )
    ORDER BY se.id
    LIMIT 1;
    from_dispatch := coalesce(first_dispatch, from_dispatch);
    FOR delivery IN
        SELECT se.id, se.positions, d.event_ids
        FROM subscription_events AS se
        INNER JOIN dispatches AS d ON d.id = se.id
        WHERE
            se.group_id = gid AND se.id >= from_dispatch AND se.subscription_id = sid
            AND d.id >= from_dispatch
        ORDER BY se.id
    LOOP
        SELECT array_agg(u.event_id ORDER BY u.position) INTO later
        FROM unnest(delivery.event_ids) WITH ORDINALITY AS u(event_id, position)
        LEFT JOIN unnest(delivery.positions) AS p(position) ON p.position = u.position
        WHERE
            (delivery.positions IS NULL OR p.position IS NOT NULL)
            AND (
                delivery.id IS DISTINCT FROM first_dispatch
                OR u.position > array_position(delivery.event_ids, from_event_id)
            );
        found_ids := found_ids || coalesce(later, '{}');
        IF cardinality(found_ids) > max_events THEN
            RAISE EXCEPTION 'more than % events follow %', max_events, from_event_id
                USING ERRCODE = 'program_limit_exceeded', HINT = 'Replay from a later event, or raise max_events.';
        END IF;
    END LOOP;
    RETURN QUERY
    SELECT e.*
    FROM read_events(found_ids) AS e
    INNER JOIN unnest(found_ids) WITH ORDINALITY AS f(event_id, place) ON f.event_id = e.id
    ORDER BY f.place;
END
$$;
