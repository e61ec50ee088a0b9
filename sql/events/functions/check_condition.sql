-- Try a condition on the latest events, read only and with the rights of pgmb_reader; failure says what is wrong with
-- it, or is NULL.
-- It is tried for the subscriptions named, or for the latest that share it; where there are none, only its words and
-- types are judged. The first event is tried alone, then more at a time, so that a costly condition is found before it
-- has cost much; a statement_timeout of the caller ends one that costs much on a single event. What takes longer than
-- max_duration_ms is looked at twice, as the server may have other work, and the quicker look counts. Too slow by
-- that is no verdict: it is an error like that of a statement_timeout, and whoever calls may try again.
CREATE FUNCTION pgmb.check_condition(
    condition text,
    subscription_ids varchar(24)[] DEFAULT NULL,
    max_events int DEFAULT 100,
    max_duration_ms int DEFAULT 1000,
    OUT failure text,
    OUT checked_events int,
    OUT duration_ms double precision
)
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
-- Young partitions have no statistics: the latest events are found along the index however many there are.
SET enable_bitmapscan TO off
SET enable_seqscan TO off
AS $$
DECLARE
    max_subscriptions CONSTANT int := 100;
    max_bytes CONSTANT bigint := 32 * 1024 * 1024;
    key CONSTANT uuid := md5(condition)::uuid;
    tried_ids varchar[] := subscription_ids[1:max_subscriptions];
    since event_id;
    latest events[];
    stretch events[];
    event events;
    started_at timestamptz;
    took_ms double precision;
BEGIN
    checked_events := 0;
    duration_ms := 0;
    -- What another subscription has was judged then.
    IF cardinality(subscription_ids) > max_subscriptions OR NOT EXISTS (
        SELECT FROM subscriptions AS s
        WHERE
            s.condition_key = key AND s.conditions_sql = condition AND s.quarantined_at IS NULL
            AND s.id <> ALL(coalesce(subscription_ids, '{}'))
    ) THEN
        failure := condition_refusal(condition);
        IF failure IS NOT NULL THEN
            RETURN;
        END IF;
    END IF;
    IF tried_ids IS NULL THEN
        tried_ids := ARRAY(
            SELECT s.id FROM subscriptions AS s
            WHERE s.condition_key = key AND s.quarantined_at IS NULL
            ORDER BY s.id DESC
            LIMIT max_subscriptions
        );
        IF cardinality(tried_ids) = 0 AND condition <> 'TRUE' THEN
            RETURN;
        END IF;
    END IF;
    -- A statement that is planned for these bounds opens the partitions between them alone. The latest minutes mostly
    -- hold enough. Large events are fewer: all of them are kept in memory.
    FOREACH since IN ARRAY ARRAY[create_event_id(clock_timestamp() - interval '10 minutes', 0), ''] LOOP
        EXECUTE
            'SELECT array_agg(w.event ORDER BY w.id DESC) FROM ('
            'SELECT l.event, l.id, sum(l.bytes) OVER (ORDER BY l.id DESC ROWS UNBOUNDED PRECEDING) - l.bytes AS bytes_before '
            'FROM ('
            'SELECT e AS event, e.id, event_weight(e.payload, e.metadata) AS bytes FROM events AS e '
            'WHERE e.id BETWEEN $1 AND $2 ORDER BY e.id DESC LIMIT $3'
            ') AS l'
            ') AS w WHERE w.bytes_before < $4'
            INTO latest
            USING since, create_event_id(clock_timestamp(), 68719476735), max_events, max_bytes;
        EXIT WHEN cardinality(latest) = max_events;
    END LOOP;
    latest := coalesce(latest, '{}');
    BEGIN
        PERFORM set_config('transaction_read_only', 'on', TRUE);
        failure := (SELECT m.failure FROM match_condition(condition, key, tried_ids, '{}', '{}') AS m);
        WHILE failure IS NULL AND checked_events < cardinality(latest) LOOP
            stretch := latest[checked_events + 1:greatest(10 * checked_events, 1)];
            took_ms := NULL;
            FOR look IN 1..2 LOOP
                started_at := clock_timestamp();
                failure := (
                    SELECT m.failure
                    FROM match_condition(
                        condition, key, tried_ids, stretch, ARRAY(SELECT p FROM generate_series(1, cardinality(stretch)) AS p)
                    ) AS m
                );
                took_ms := least(took_ms, extract(EPOCH FROM clock_timestamp() - started_at) * 1000);
                EXIT WHEN failure IS NOT NULL OR duration_ms + took_ms <= max_duration_ms;
            END LOOP;
            checked_events := checked_events + cardinality(stretch);
            duration_ms := duration_ms + took_ms;
            IF failure IS NOT NULL THEN
                FOREACH event IN ARRAY stretch LOOP
                    EXIT WHEN (
                        SELECT m.failure IS NOT NULL
                        FROM match_condition(condition, key, tried_ids, ARRAY[event], ARRAY[1]) AS m
                    );
                END LOOP;
                failure := concat('it fails on event ', event.id, ': ', failure);
            ELSIF duration_ms > max_duration_ms THEN
                RAISE EXCEPTION 'condition "%" was not tried in time: % events took % ms, and % ms are the most',
                    condition, checked_events, round(duration_ms), max_duration_ms
                    USING ERRCODE = 'query_canceled',
                    HINT = 'Try again, as the server may have had other work; if that does not help, make it cheaper: every '
                        'event waits for it.';
            END IF;
        END LOOP;
        RAISE EXCEPTION USING ERRCODE = 'triggered_action_exception';
    EXCEPTION
        WHEN triggered_action_exception THEN
            NULL; -- the transaction may write again
    END;
END
$$;
