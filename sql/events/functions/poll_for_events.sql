-- Dispatch what was committed since the last poll, at most one chunk; return how many matches that made.
-- A chunk is poll_chunk_size events, or fewer when they are large: conditions look at all of a poll's events at once.
-- One session polls at a time, others return 0 at once. Everything happens in the caller's transaction: all or nothing.
-- What a transaction published is found by its id once it is visible in the window, a snapshot taken by this or an
-- earlier poll: a late commit is in a later window, never passed over, nor is what the caller publishes after the poll.
-- See tables/dispatch_state.sql.
-- The order of statements matters: a group's cursor begins at its creation, so the instant of a dispatch must lie
-- behind the snapshot, and subscriptions must be read after it.
CREATE FUNCTION pgmb.poll_for_events()
RETURNS int
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path TO pgmb, pg_temp
SET plan_cache_mode TO force_generic_plan
SET enable_hashjoin TO off
SET enable_mergejoin TO off
SET enable_seqscan TO off
SET enable_bitmapscan TO off
SET jit TO off
AS $$
#variable_conflict use_column
DECLARE
    chunk_size CONSTANT int := get_config_value('poll_chunk_size')::int;
    chunk_bytes CONSTANT bigint := 32 * 1024 * 1024;
    this_server CONSTANT bigint := server_identifier();
    past dispatch_state;
    current_window pg_snapshot;
    closed_window boolean := FALSE;
    open_ids xid8[];
    seen_to xid8;
    window_ids event_id[];
    window_targets subscription_id[];
    window_count int;
    is_cut boolean;
    last_transaction_id xid8;
    now_id text;
    future_ids event_id[];
    ids event_id[];
    targets subscription_id[];
    event_count int;
    plain_count int;
    plain_positions int[];
    this_dispatch text;
    first_event_id text;
    last_event_id text;
    batch events[];
    batch_positions int[];
    condition record;
    outcome record;
    made bigint;
    total bigint := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('pgmb.poll_for_events', 0)) THEN
        RETURN 0;
    END IF;
    SELECT st.* INTO STRICT past FROM dispatch_state AS st;
    -- Where the server cannot be told, at least its ids must have come as far as those of the state.
    IF past.system_identifier <> this_server
        OR pg_snapshot_xmax(pg_current_snapshot()) < pg_snapshot_xmax(past.dispatched) THEN
        RAISE EXCEPTION 'dispatch_state comes from another server, whose transaction ids mean nothing here'
            USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Was the database restored from a dump? SELECT pgmb.resynchronize_dispatch(); after pg_upgrade, '
                'which keeps transaction ids: UPDATE pgmb.dispatch_state SET system_identifier = NULL.';
    END IF;

    SELECT array_agg(t.event_id), array_agg(t.subscription_id)
    INTO ids, targets
    FROM take_due_events((chunk_size + 1) / 2, chunk_bytes / 8) AS t;

    LOOP
        current_window := coalesce(past.open_window, take_snapshot());
        open_ids := ARRAY(SELECT x.id FROM pg_snapshot_xip(past.dispatched) AS x(id));
        seen_to := pg_snapshot_xmax(past.dispatched);
        SELECT
            array_agg(c.id) FILTER (WHERE c.bytes_before < chunk_bytes),
            array_agg(c.subscription_id) FILTER (WHERE c.bytes_before < chunk_bytes),
            max(c.transaction_id) FILTER (WHERE c.bytes_before < chunk_bytes),
            count(*)
        INTO window_ids, window_targets, last_transaction_id, window_count
        FROM (
            SELECT
                w.*,
                sum(w.bytes) OVER (ORDER BY w.transaction_id, w.id ROWS UNBOUNDED PRECEDING) - w.bytes AS bytes_before
            FROM window_events(
                current_window, open_ids, seen_to, past.window_transaction_id, past.window_event_id, chunk_size
            ) AS w
            ORDER BY w.transaction_id, w.id
        ) AS c;
        is_cut := window_count = chunk_size OR window_count > cardinality(window_ids);
        EXIT WHEN window_ids IS NOT NULL OR past.open_window IS NULL;
        -- The last chunk of that window was a full one: go on with the next window at once.
        past.dispatched := past.open_window;
        past.open_window := NULL;
        past.window_transaction_id := NULL;
        past.window_event_id := NULL;
        closed_window := TRUE;
    END LOOP;

    now_id := create_event_id(clock_timestamp(), 68719476735);
    future_ids := ARRAY(SELECT u.id FROM unnest(window_ids) AS u(id) WHERE u.id > now_id);
    IF cardinality(future_ids) > 0 THEN
        PERFORM postpone_events(future_ids);
        SELECT array_agg(u.id ORDER BY u.number), array_agg(u.target ORDER BY u.number)
        INTO ids, targets
        FROM (
            SELECT d.id, d.target, d.number - cardinality(ids) - 1 AS number
            FROM unnest(ids, targets) WITH ORDINALITY AS d(id, target, number)
            UNION ALL
            SELECT w.id, w.target, w.number
            FROM unnest(window_ids, window_targets) WITH ORDINALITY AS w(id, target, number)
            WHERE w.id <= now_id
        ) AS u;
    ELSE
        ids := ids || window_ids;
        targets := targets || window_targets;
    END IF;
    event_count := coalesce(cardinality(ids), 0);

    IF event_count > 0 THEN
        this_dispatch := next_dispatch_id(past.last_dispatch_id);
        SELECT min(u.id), max(u.id) INTO first_event_id, last_event_id FROM unnest(ids) AS u(id);
        INSERT INTO dispatches (id, event_ids, event_count, first_event_id, dispatched_at)
        VALUES (this_dispatch, ids, event_count, first_event_id, clock_timestamp());

        plain_count := event_count;
        IF num_nonnulls(VARIADIC targets) > 0 THEN
            plain_positions := ARRAY(
                SELECT u.position::int
                FROM unnest(targets) WITH ORDINALITY AS u(target, position)
                WHERE u.target IS NULL
                ORDER BY u.position
            );
            plain_count := cardinality(plain_positions);
        END IF;

        -- Thousands that subscribed in one go have no statistics yet, and a wrong join takes minutes.
        IF (
            SELECT pg_relation_size(c.oid) / current_setting('block_size')::int > 2 * c.relpages + 2
            FROM pg_class AS c
            WHERE c.oid = 'subscriptions'::regclass
        ) THEN
            ANALYZE (SKIP_LOCKED) subscriptions;
        END IF;

        FOR condition IN
            WITH RECURSIVE keys AS (
                (
                    SELECT s.condition_key AS key
                    FROM subscriptions AS s
                    WHERE s.quarantined_at IS NULL
                    ORDER BY s.condition_key
                    LIMIT 1
                )
                UNION ALL
                SELECT (
                    SELECT s.condition_key
                    FROM subscriptions AS s
                    WHERE s.quarantined_at IS NULL AND s.condition_key > keys.key
                    ORDER BY s.condition_key
                    LIMIT 1
                )
                FROM keys
                WHERE keys.key IS NOT NULL
            )

            SELECT
                keys.key,
                (
                    SELECT s.conditions_sql
                    FROM subscriptions AS s
                    WHERE s.quarantined_at IS NULL AND s.condition_key = keys.key
                    LIMIT 1
                ) AS text
            FROM keys
            WHERE keys.key IS NOT NULL AND plain_count > 0
        LOOP
            IF upper(btrim(condition.text)) = 'TRUE' THEN
                INSERT INTO subscription_events (id, group_id, subscription_id, positions, match_count)
                SELECT this_dispatch, s.group_id, s.id, plain_positions, plain_count
                FROM subscriptions AS s
                WHERE s.quarantined_at IS NULL AND s.condition_key = condition.key;
                GET DIAGNOSTICS made = ROW_COUNT;
                total := total + made * plain_count;
                CONTINUE;
            END IF;
            IF batch IS NULL THEN
                SELECT array_agg(e.row ORDER BY u.position), array_agg(u.position::int ORDER BY u.position)
                INTO batch, batch_positions
                FROM unnest(ids, targets) WITH ORDINALITY AS u(id, target, position)
                CROSS JOIN LATERAL (
                    SELECT stored AS row
                    FROM events AS stored
                    WHERE stored.id = u.id AND stored.id BETWEEN first_event_id AND last_event_id
                    LIMIT 1
                ) AS e
                WHERE u.target IS NULL;
            END IF;
            SELECT m.matches, m.failure
            INTO outcome
            FROM match_condition(condition.text, condition.key, NULL, batch, batch_positions) AS m;
            IF outcome.failure IS NOT NULL THEN
                outcome.matches := quarantine_failing(condition.text, condition.key, batch, batch_positions);
            END IF;
            INSERT INTO subscription_events (id, group_id, subscription_id, positions, match_count)
            SELECT
                this_dispatch, m.group_id, m.subscription_id,
                CASE WHEN cardinality(m.positions) < event_count THEN m.positions END,
                cardinality(m.positions)
            FROM unnest(outcome.matches) AS m;
            total := total
                + (SELECT coalesce(sum(cardinality(m.positions)), 0) FROM unnest(outcome.matches) AS m);
        END LOOP;

        IF plain_count < event_count THEN
            INSERT INTO subscription_events AS se (id, group_id, subscription_id, positions, match_count)
            SELECT this_dispatch, s.group_id, s.id, array_agg(u.position::int ORDER BY u.position), count(*)
            FROM unnest(targets) WITH ORDINALITY AS u(target, position)
            INNER JOIN subscriptions AS s ON s.id = u.target
            GROUP BY s.group_id, s.id
            ON CONFLICT (group_id, id, subscription_id) DO UPDATE SET
                positions = CASE
                    WHEN se.match_count + excluded.match_count < event_count
                        THEN ARRAY(
                            SELECT p.position FROM unnest(se.positions || excluded.positions) AS p(position)
                            ORDER BY p.position
                        )
                END,
                match_count = se.match_count + excluded.match_count;
            total := total + (
                SELECT count(*) FROM unnest(targets) AS u(target)
                INNER JOIN subscriptions AS s ON s.id = u.target
            );
        END IF;
    END IF;

    IF is_cut THEN
        UPDATE dispatch_state SET
            system_identifier = this_server,
            dispatched = past.dispatched,
            open_window = current_window,
            window_transaction_id = last_transaction_id,
            window_event_id = window_ids[cardinality(window_ids)],
            last_dispatch_id = coalesce(this_dispatch, past.last_dispatch_id),
            polled_at = clock_timestamp();
    ELSIF event_count > 0 OR cardinality(window_ids) > 0 OR past.open_window IS NOT NULL OR closed_window
        OR past.polled_at NOT BETWEEN clock_timestamp() - interval '1 second' AND clock_timestamp() THEN
        UPDATE dispatch_state SET
            system_identifier = this_server,
            dispatched = current_window,
            open_window = NULL,
            window_transaction_id = NULL,
            window_event_id = NULL,
            last_dispatch_id = coalesce(this_dispatch, past.last_dispatch_id),
            polled_at = clock_timestamp();
    END IF;
    IF total > 0 THEN
        PERFORM pg_notify('pgmb_dispatched', '');
    END IF;
    RETURN total;
END
$$;
