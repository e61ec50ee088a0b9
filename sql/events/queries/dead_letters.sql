-- List dead letters that were not replayed, the oldest first.
-- params: group_id, after, limit; no group for all
-- rows: dead letters
-- index: primary key of pgmb.dead_letters
SELECT
    d.id,
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
LIMIT %(limit)s
