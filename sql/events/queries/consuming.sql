-- name: listen_events
-- Be notified when events were published.
-- params: none
-- rows: none
-- index: none
LISTEN pgmb_events;

-- name: listen_dispatched
-- Be notified when events were dispatched.
-- params: none
-- rows: none
-- index: none
LISTEN pgmb_dispatched;

-- name: poll_for_events
-- Dispatch one chunk of events.
-- params: none
-- rows: matches made
-- index: none
SELECT pgmb.poll_for_events() AS matches;

-- name: last_poll
-- Tell when a poll last changed anything.
-- params: none
-- rows: one
-- index: none
SELECT st.polled_at
FROM pgmb.dispatch_state AS st;

-- name: read_events
-- Read stored events.
-- params: ids
-- rows: events, in the order of their ids
-- index: none
SELECT
    r.id AS event_id,
    r.topic,
    r.payload,
    r.metadata
FROM pgmb.read_events(%(ids)s::pgmb.event_id[]) AS r;

-- name: read_next_events
-- Read what a group has to read next.
-- params: group_id, cursor, limit, peek
-- rows: event, its subscriptions, cursor behind the last row
-- index: none
SELECT
    r.id AS event_id,
    r.topic,
    r.payload,
    r.metadata,
    r.subscription_ids::text[] AS subscription_ids,
    r.next_cursor
FROM pgmb.read_next_events(%(group_id)s, %(cursor)s, %(limit)s, %(peek)s) AS r;

-- name: replay_events
-- Read again what a subscription got after an event.
-- params: group_id, subscription_id, after_event_id, limit
-- rows: events, in the order of dispatch
-- index: none
SELECT
    r.id AS event_id,
    r.topic,
    r.payload,
    r.metadata
FROM pgmb.replay_events(%(group_id)s, %(subscription_id)s, %(after_event_id)s, %(limit)s) AS r;

-- name: fail_events
-- Keep events as dead letters, unless their subscription is gone: then nobody wants them.
-- params: subscription_id, ids, handler, reason, attempts, retry_id
-- rows: how many; none without the subscription
-- index: primary key of pgmb.subscriptions
SELECT
    pgmb.fail_events(
        s.id, %(ids)b::text[], %(handler)s, %(reason)s, %(attempts)s, %(retry_id)s
    ) AS failed
FROM pgmb.subscriptions AS s
WHERE s.id = %(subscription_id)s;

-- name: schedule_retry
-- Have events come again to one handler.
-- params: subscription_id, ids, retry_number, handler, delay_s, retry_id
-- rows: id of the event that brings them, or none
-- index: none
SELECT
    pgmb.schedule_retry(
        %(subscription_id)s,
        %(ids)b::text[],
        %(retry_number)s,
        %(handler)s,
        make_interval(secs => %(delay_s)s),
        %(retry_id)s
    ) AS id;

-- name: dead_letter_sizes
-- Tell how many bytes the contents of dead letters are as text.
-- params: ids
-- rows: id and bytes of each that was not replayed
-- index: primary key of pgmb.dead_letters
SELECT
    d.id,
    octet_length(d.payload::text) + coalesce(octet_length(d.metadata::text), 0) AS bytes
FROM pgmb.dead_letters AS d
WHERE d.id = any(%(ids)b::bigint[]) AND d.replayed_at IS NULL
ORDER BY d.id;

-- name: dead_letters
-- List dead letters that were not replayed, the oldest first.
-- params: group_id, after, limit; no group for all
-- rows: dead letters
-- index: primary key of pgmb.dead_letters
SELECT
    d.id AS dead_letter_id,
    d.event_id,
    d.topic,
    d.payload,
    d.metadata,
    d.group_id,
    d.subscription_id,
    d.handler,
    d.reason,
    d.attempts,
    d.died_at
FROM pgmb.dead_letters AS d
WHERE
    d.replayed_at IS NULL
    AND d.id > %(after)s
    AND (%(group_id)s::text IS NULL OR d.group_id = %(group_id)s::text)
ORDER BY d.id
LIMIT %(limit)s;

-- name: replay_dead_letters
-- Deliver dead letters again.
-- params: ids, subscription_id; no subscription for their own
-- rows: how many
-- index: primary key of pgmb.dead_letters
SELECT pgmb.replay_dead_letters(%(ids)b::bigint[], %(subscription_id)s) AS replayed;
