-- Publish events by COPY.
-- params: none
-- rows: none; the client sends topic, payload, metadata and subscription_id of each event
-- index: none
COPY pgmb.events (topic, payload, metadata, subscription_id) FROM STDIN
