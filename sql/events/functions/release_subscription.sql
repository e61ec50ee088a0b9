-- Evaluate a quarantined subscription's condition again, and dispatch the events that it has missed. Events that were
-- dispatched to another subscription alone, for example by its release, do not count as missed.
-- Returns the number of these events, and those on which the condition fails, which are not delivered. Events that
-- retention has removed are lost. With redeliver => FALSE it continues from now.
-- Waits for a running poll, whose dispatch must be visible here.
CREATE FUNCTION pgmb.release_subscription(
    sid varchar(24), redeliver boolean DEFAULT TRUE, OUT redelivered int, OUT failed_event_ids varchar(24)[]
)
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
SET plan_cache_mode TO force_custom_plan
AS $$
DECLARE
    released subscriptions;
    missed record;
    outcome record;
    single record;
    matched_positions int[];
    this_dispatch varchar;
BEGIN
    redelivered := 0;
    failed_event_ids := '{}';
    PERFORM check_isolation();
    PERFORM pg_advisory_xact_lock(hashtextextended('pgmb.poll_for_events', 0));
    SELECT s.* INTO released FROM subscriptions AS s WHERE s.id = sid FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no subscription %', sid
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It may have expired: subscribe again.';
    ELSIF released.quarantined_at IS NULL THEN
        RETURN;
    END IF;
    UPDATE subscriptions AS s
    SET quarantined_at = NULL, quarantine_reason = NULL, quarantine_dispatch_id = NULL
    WHERE s.id = sid;
    IF NOT redeliver THEN
        RETURN;
    END IF;
    FOR missed IN
        SELECT d.event_ids, b.events, b.positions
        FROM dispatches AS d
        CROSS JOIN LATERAL (
            SELECT array_agg(e ORDER BY u.position) AS events, array_agg(u.position::int ORDER BY u.position) AS positions
            FROM unnest(d.event_ids) WITH ORDINALITY AS u(event_id, position)
            INNER JOIN read_events(d.event_ids) AS e ON e.id = u.event_id
            WHERE e.subscription_id IS NULL
        ) AS b
        WHERE
            d.id > released.quarantine_dispatch_id
            AND b.events IS NOT NULL
            AND NOT EXISTS (
                SELECT FROM subscription_events AS se
                WHERE
                    se.id = d.id
                    AND se.id > released.quarantine_dispatch_id
                    AND se.match_count = d.event_count
                    AND se.positions IS NOT NULL
            )
        ORDER BY d.id
    LOOP
        SELECT m.matches, m.failure INTO outcome
        FROM match_condition(
            released.conditions_sql, released.condition_key, ARRAY[sid], missed.events, missed.positions
        ) AS m;
        IF outcome.failure IS NULL THEN
            matched_positions := (outcome.matches)[1].positions;
        ELSE
            matched_positions := '{}';
            FOR single IN
                SELECT u.event, u.position, m.matches, m.failure
                FROM unnest(missed.positions) WITH ORDINALITY AS p(position, place)
                CROSS JOIN LATERAL (SELECT missed.events[p.place] AS event, p.position) AS u
                CROSS JOIN LATERAL match_condition(
                    released.conditions_sql, released.condition_key, ARRAY[sid], ARRAY[u.event], ARRAY[u.position]
                ) AS m
                ORDER BY p.place
            LOOP
                IF single.failure IS NOT NULL THEN
                    failed_event_ids := failed_event_ids || missed.event_ids[single.position]::varchar;
                ELSIF single.matches IS NOT NULL THEN
                    matched_positions := matched_positions || single.position;
                END IF;
            END LOOP;
        END IF;
        CONTINUE WHEN coalesce(cardinality(matched_positions), 0) = 0;

        UPDATE dispatch_state AS st SET last_dispatch_id = next_dispatch_id(st.last_dispatch_id)
        RETURNING st.last_dispatch_id INTO this_dispatch;
        INSERT INTO dispatches (id, event_ids, event_count, first_event_id, dispatched_at)
        SELECT
            this_dispatch, array_agg(u.event_id ORDER BY u.position), count(*), min(u.event_id), clock_timestamp()
        FROM unnest(missed.event_ids) WITH ORDINALITY AS u(event_id, position)
        INNER JOIN unnest(matched_positions) AS p(position) ON p.position = u.position;
        INSERT INTO subscription_events (id, group_id, subscription_id, positions, match_count)
        SELECT this_dispatch, released.group_id, sid, array_agg(p.position ORDER BY p.position), count(*)
        FROM generate_series(1, cardinality(matched_positions)) AS p(position);
        redelivered := redelivered + cardinality(matched_positions);
    END LOOP;
    IF redelivered > 0 THEN
        PERFORM pg_notify('pgmb_dispatched', '');
    END IF;
END
$$;
