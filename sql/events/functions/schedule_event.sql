-- Publish an event at a later time, however late; return its id. With a past instant, the next poll publishes it.
-- An event for a subscription that does not exist would reach nobody, so it is refused, as by send.
CREATE FUNCTION pgmb.schedule_event(
    due_at timestamptz,
    topic varchar(255),
    payload jsonb,
    metadata jsonb DEFAULT NULL,
    subscription_id varchar(24) DEFAULT NULL
)
RETURNS pgmb.event_id
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    due timestamptz := greatest(due_at, clock_timestamp());
    scheduled_id event_id;
BEGIN
    -- Ids have 52 bits of microseconds.
    IF due_at IS NULL OR due >= '2112-09-17 00:00:00+00' THEN
        RAISE EXCEPTION 'an event cannot be due at %', coalesce(due_at::text, 'no time')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Name an instant before September 2112.';
    END IF;
    IF schedule_event.subscription_id IS NOT NULL
        AND NOT EXISTS (SELECT FROM subscriptions AS s WHERE s.id = schedule_event.subscription_id) THEN
        RAISE EXCEPTION 'there is no subscription %', schedule_event.subscription_id
            USING ERRCODE = 'foreign_key_violation', HINT = 'It may have expired: subscribe again.';
    END IF;
    scheduled_id := create_event_id(due, nextval('event_numbers'));
    INSERT INTO scheduled_events (id, due_at, topic, payload, metadata, subscription_id)
    VALUES (
        scheduled_id, due, schedule_event.topic, schedule_event.payload, schedule_event.metadata,
        schedule_event.subscription_id
    );
    IF due <= clock_timestamp() THEN
        PERFORM pg_notify('pgmb_events', '');
    END IF;
    RETURN scheduled_id;
END
$$;
