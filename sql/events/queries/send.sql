-- Publish events for one subscription alone and wake the dispatcher.
-- params: subscription_id, topics, payloads, metadatas
-- rows: id of each event, in order
-- index: none
SELECT p.id
FROM
    pgmb.send(
        %(subscription_id)s, %(topics)b::text[], %(payloads)b::text[]::jsonb[], %(metadatas)b::text[]::jsonb[]
    ) AS p (id)
