-- Return the events after a cursor that a group has not read, in the order of dispatch; empty only if there are none.
-- The first statement finds the end of the page, row by row along the primary key; the second reads only that range.
-- If all subscriptions get all events, nothing has to be merged, which takes most of the time.
-- Nothing here may depend on statistics, which new partitions do not have; so one plan can serve all calls.
CREATE FUNCTION pgmb.pending_events(gid varchar(48), after_cursor varchar(24), max_events int)
RETURNS SETOF pgmb.pending_event
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path TO pgmb, pg_temp
SET plan_cache_mode TO force_generic_plan
SET enable_hashjoin TO on
SET enable_mergejoin TO on
SET enable_nestloop TO off
SET enable_hashagg TO off
SET enable_seqscan TO off
SET enable_bitmapscan TO off
SET jit TO off
AS $$
DECLARE
    from_dispatch text := left(after_cursor, 15) || '000000000';
    -- Partitions ahead of time, which have no dispatches, are left out.
    last_dispatch CONSTANT text := (SELECT st.last_dispatch_id FROM dispatch_state AS st);
    -- A cursor may be after everything that a dispatch can hold.
    from_position bigint := least(('x' || lpad(right(after_cursor, 9), 16, '0'))::bit(64)::bigint, 2147483646);
    to_dispatch text;
    at_least bigint;
    is_whole boolean;
    next_dispatch record;
BEGIN
    LOOP
        to_dispatch := NULL;
        at_least := 0;
        is_whole := TRUE;
        FOR next_dispatch IN
            SELECT se.id, max(se.match_count) AS match_count, bool_and(se.positions IS NULL) AS is_whole
            FROM subscription_events AS se
            WHERE se.group_id = gid AND se.id BETWEEN from_dispatch AND last_dispatch
            GROUP BY se.id
            ORDER BY se.id
        LOOP
            to_dispatch := next_dispatch.id;
            is_whole := is_whole AND next_dispatch.is_whole;
            -- If a dispatch was read in part, the rest of it is not known.
            IF from_position = 0 OR next_dispatch.id > from_dispatch THEN
                at_least := at_least + next_dispatch.match_count;
            END IF;
            EXIT WHEN at_least >= max_events;
        END LOOP;
        EXIT WHEN to_dispatch IS NULL;

        IF is_whole THEN
            RETURN QUERY
            SELECT
                left(m.dispatch_id, 15) || lpad(to_hex(m.read_before + u.place), 9, '0') AS cursor,
                u.event_id::text,
                m.subscription_ids
            FROM (
                SELECT
                    se.id AS dispatch_id,
                    CASE WHEN se.id = from_dispatch THEN from_position ELSE 0 END AS read_before,
                    array_agg(se.subscription_id::text ORDER BY se.subscription_id) AS subscription_ids
                FROM subscription_events AS se
                WHERE
                    se.group_id = gid
                    AND se.id BETWEEN from_dispatch AND to_dispatch
                    -- Subscriptions that are gone get nothing any more.
                    AND (SELECT TRUE FROM subscriptions AS s WHERE s.id = se.subscription_id)
                GROUP BY se.id
            ) AS m
            CROSS JOIN LATERAL (
                SELECT
                    d.event_ids[(m.read_before + 1)::int:least(m.read_before + max_events, 2147483647)::int] AS event_ids
                FROM dispatches AS d
                WHERE d.id = m.dispatch_id AND d.id BETWEEN from_dispatch AND to_dispatch
                LIMIT 1
            ) AS d
            CROSS JOIN LATERAL unnest(d.event_ids) WITH ORDINALITY AS u(event_id, place)
            ORDER BY m.dispatch_id, u.place
            LIMIT max_events;
        ELSE
            RETURN QUERY
            WITH matched AS MATERIALIZED (
                SELECT
                    se.id AS dispatch_id,
                    p.position,
                    array_agg(se.subscription_id::text ORDER BY se.subscription_id) AS subscription_ids
                FROM subscription_events AS se
                CROSS JOIN LATERAL (
                    SELECT CASE WHEN se.id = from_dispatch THEN from_position ELSE 0 END AS read_before
                ) AS r
                CROSS JOIN LATERAL (
                    SELECT u.position
                    FROM unnest(se.positions) AS u(position)
                    WHERE u.position > r.read_before
                    UNION ALL
                    SELECT g.position
                    FROM generate_series(
                        r.read_before + 1, least(se.match_count, r.read_before + max_events)
                    ) AS g(position)
                    WHERE se.positions IS NULL
                    LIMIT max_events
                ) AS p
                WHERE
                    se.group_id = gid
                    AND se.id BETWEEN from_dispatch AND to_dispatch
                    -- Subscriptions that are gone get nothing any more.
                    AND (SELECT TRUE FROM subscriptions AS s WHERE s.id = se.subscription_id)
                GROUP BY se.id, p.position
                ORDER BY se.id, p.position
                LIMIT max_events
            ),

            placed AS MATERIALIZED (
                SELECT
                    x.dispatch_id,
                    u.event_id,
                    x.first_position + u.place - 1 AS position
                FROM (
                    SELECT m.dispatch_id, min(m.position) AS first_position, max(m.position) AS last_position
                    FROM matched AS m
                    GROUP BY m.dispatch_id
                ) AS x
                CROSS JOIN LATERAL (
                    SELECT d.event_ids[x.first_position:x.last_position] AS event_ids
                    FROM dispatches AS d
                    WHERE d.id = x.dispatch_id AND d.id BETWEEN from_dispatch AND to_dispatch
                    LIMIT 1
                ) AS d
                CROSS JOIN LATERAL unnest(d.event_ids) WITH ORDINALITY AS u(event_id, place)
            )

            SELECT
                left(m.dispatch_id, 15) || lpad(to_hex(m.position), 9, '0') AS cursor,
                pl.event_id::text,
                m.subscription_ids
            FROM matched AS m
            INNER JOIN placed AS pl ON pl.dispatch_id = m.dispatch_id AND pl.position = m.position
            ORDER BY m.dispatch_id, m.position;
        END IF;

        -- All of this range was for removed subscriptions: continue after it.
        EXIT WHEN FOUND OR at_least < max_events;
        from_dispatch := left(to_dispatch, 15) || 'fffffffff';
        from_position := 0;
    END LOOP;
END
$$;
