-- Take over events whose time has not come, unless PGMB has dispatched them: the list of those to be dispatched is not
-- asked, since it is empty after a crash.
-- params: now_id
-- rows: none
-- index: none
INSERT INTO pgmb.scheduled_events (id, due_at, topic, payload, metadata, subscription_id)
SELECT
    e.id,
    pgmb.extract_date_from_event_id(e.id::text::pgmb.event_id) AS due_at,
    e.topic,
    e.payload,
    e.metadata,
    e.subscription_id
FROM pgmb_original.events AS e
WHERE
    e.id::text::pgmb.event_id > %(now_id)s
    AND NOT EXISTS (
        SELECT FROM pgmb_original.subscription_events AS se
        WHERE se.event_id = e.id
    )
