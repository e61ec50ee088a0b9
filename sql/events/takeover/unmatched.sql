-- Count events that PGMB neither lists as unread nor has dispatched to anybody: no condition held for them, or the
-- list, which is not logged, was lost in a crash.
-- params: now_id
-- rows: one: (events)
-- index: none
SELECT count(*) AS events
FROM pgmb_original.events AS e
WHERE
    e.id::text::pgmb.event_id <= %(now_id)s
    AND NOT EXISTS (
        SELECT FROM pgmb_original.unread_events AS u
        WHERE u.event_id = e.id
    )
    AND NOT EXISTS (
        SELECT FROM pgmb_original.subscription_events AS se
        WHERE se.event_id = e.id
    )
