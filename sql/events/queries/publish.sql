-- Publish events and wake the dispatcher. Arrays travel as bytes: quoting their elements takes the client longer than
-- all else.
-- params: topics, payloads, metadatas
-- rows: id of each event, in order
-- index: none
SELECT p.id
FROM
    pgmb.publish(
        %(topics)b::text[], %(payloads)b::text[]::jsonb[], %(metadatas)b::text[]::jsonb[]
    ) AS p (id)
