-- Read what a group has to read next.
-- params: group_id, cursor, limit, peek
-- rows: event, its subscriptions, cursor behind the last row
-- index: none
SELECT
    r.id,
    r.topic,
    r.payload,
    r.metadata,
    r.subscription_ids::text[] AS subscription_ids,
    r.next_cursor
FROM pgmb.read_next_events(%(group_id)s, %(cursor)s, %(limit)s, %(peek)s) AS r
