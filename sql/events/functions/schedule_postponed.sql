-- Keep rows of the log as scheduled events, due at the instant of their ids; at once if an id is not of this broker.
CREATE FUNCTION pgmb.schedule_postponed(postponed pgmb.events[])
RETURNS void
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
BEGIN
    INSERT INTO scheduled_events (id, due_at, topic, payload, metadata, subscription_id)
    SELECT
        CASE
            WHEN p.id ~ '^pm[0-9a-f]{22}$' AND NOT EXISTS (SELECT FROM scheduled_events AS sc WHERE sc.id = p.id)
                THEN p.id
            ELSE create_event_id(d.due_at, create_random_bigint())
        END,
        d.due_at, p.topic, p.payload, p.metadata, p.subscription_id
    FROM unnest(postponed) AS p
    CROSS JOIN LATERAL (
        SELECT
            CASE
                WHEN p.id ~ '^pm[0-9a-f]{22}$' THEN extract_date_from_event_id(p.id)
                ELSE clock_timestamp()
            END AS due_at
    ) AS d;
END
$$;
