-- Deliver dead letters again, each to the handler that gave it up; return their number. A letter is replayed only once.
-- They are sent as retry events with copies and number 0, so the handler has all its attempts again.
-- to_subscription_id is another subscription, if the first one has expired.
CREATE FUNCTION pgmb.replay_dead_letters(dead_letter_ids bigint[], to_subscription_id varchar(24) DEFAULT NULL)
RETURNS int
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    letters_per_event CONSTANT int := 100;
    missing text;
    replayed int;
BEGIN
    SELECT string_agg(DISTINCT target.id, ', ')
    INTO missing
    FROM dead_letters AS d
    CROSS JOIN LATERAL (SELECT coalesce(to_subscription_id, d.subscription_id) AS id) AS target
    WHERE
        d.id = ANY(dead_letter_ids)
        AND d.replayed_at IS NULL
        AND NOT EXISTS (SELECT FROM subscriptions AS s WHERE s.id = target.id);
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION 'there is no subscription %', missing
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'It was removed or has expired: name another one as to_subscription_id.';
    END IF;
    WITH letters AS (
        UPDATE dead_letters AS d SET replayed_at = now()
        WHERE d.id = ANY(dead_letter_ids) AND d.replayed_at IS NULL
        RETURNING
            d.id, d.event_id, d.handler, coalesce(to_subscription_id, d.subscription_id) AS target_id,
            jsonb_build_object(
                'id', d.event_id, 'topic', d.topic, 'payload', d.payload, 'metadata', d.metadata
            ) AS copy
    ),
    numbered AS (
        SELECT
            letters.*,
            (row_number() OVER (PARTITION BY target_id, handler ORDER BY event_id) - 1) / letters_per_event AS batch
        FROM letters
    ),
    sent AS (
        INSERT INTO events (topic, payload, subscription_id)
        SELECT
            'pgmb-retry',
            jsonb_build_object(
                'ids', jsonb_agg(event_id ORDER BY event_id),
                'retryNumber', 0,
                'handlerName', handler,
                'events', jsonb_agg(copy ORDER BY event_id)
            ),
            target_id
        FROM numbered
        GROUP BY target_id, handler, batch
        ORDER BY target_id, handler, batch
    )
    SELECT count(*) INTO replayed FROM letters;
    PERFORM pg_notify('pgmb_events', '');
    RETURN replayed;
END
$$;
