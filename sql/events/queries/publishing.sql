-- name: publish
-- Publish events and wake the dispatcher. Arrays travel as bytes: quoting their elements takes the client longer than
-- all else.
-- params: topics, payloads, metadatas
-- rows: id of each event, in order
-- index: none
SELECT p.id
FROM
    pgmb.publish(
        %(topics)b::text[], %(payloads)b::text[]::jsonb[], %(metadatas)b::text[]::jsonb[]
    ) AS p (id);

-- name: send
-- Publish events for one subscription alone and wake the dispatcher.
-- params: subscription_id, topics, payloads, metadatas
-- rows: id of each event, in order
-- index: none
SELECT p.id
FROM
    pgmb.send(
        %(subscription_id)s, %(topics)b::text[], %(payloads)b::text[]::jsonb[], %(metadatas)b::text[]::jsonb[]
    ) AS p (id);

-- name: schedule_event
-- Publish an event at a later time.
-- params: due_at, delay_ms, topics, payloads, metadatas, subscription_id; one event, by one of the first two
-- rows: its id
-- index: none
SELECT
    pgmb.schedule_event(
        coalesce(
            %(due_at)s::timestamptz, clock_timestamp() + %(delay_ms)s::bigint * interval '1 ms'
        ),
        (%(topics)b::text[])[1],
        (%(payloads)b::jsonb[])[1],
        (%(metadatas)b::jsonb[])[1],
        %(subscription_id)s
    ) AS id;

-- name: has_subscription
-- Tell whether events can be published for a subscription.
-- params: subscription_id
-- rows: one: whether it is there
-- index: subscriptions_pkey
SELECT exists(
    SELECT 1
    FROM pgmb.subscriptions AS s
    WHERE s.id = %(subscription_id)s
) AS is_there;

-- name: copy_events
-- Publish events by COPY.
-- params: none
-- rows: none; the client sends topic, payload, metadata and subscription_id of each event
-- index: none
COPY pgmb.events (topic, payload, metadata, subscription_id) FROM STDIN;

-- name: notify_events
-- Wake the dispatcher after a COPY.
-- params: none
-- rows: one, without meaning
-- index: none
SELECT pg_notify('pgmb_events', '');

-- name: window_is_open
-- Tell whether the last poll has left a part of its window to the next.
-- params: none
-- rows: one
-- index: none
SELECT st.open_window IS NOT NULL AS is_open
FROM pgmb.dispatch_state AS st;

-- name: latest_event_id
-- Return the id that an event would have now.
-- params: none
-- rows: one
-- index: none
SELECT pgmb.create_event_id(clock_timestamp(), 0) AS id;
