-- Publish an event at a later time.
-- params: due_at, topics, payloads, metadatas, subscription_id; one event
-- rows: its id
-- index: none
SELECT
    pgmb.schedule_event(
        %(due_at)s::timestamptz,
        (%(topics)s::text[])[1],
        (%(payloads)s::jsonb[])[1],
        (%(metadatas)s::jsonb[])[1],
        %(subscription_id)s
    ) AS id
