-- Publish events in one statement and wake the dispatcher; their ids come in the order of the arrays.
CREATE FUNCTION pgmb.publish(topics text[], payloads jsonb[], metadatas jsonb[] DEFAULT NULL)
RETURNS SETOF pgmb.event_id
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
BEGIN
    IF cardinality(topics) <> cardinality(payloads) OR cardinality(topics) <> cardinality(metadatas) THEN
        RAISE EXCEPTION 'topics, payloads and metadatas differ in length: %, %, %',
            cardinality(topics), cardinality(payloads), cardinality(metadatas)
            USING ERRCODE = 'array_subscript_error', HINT = 'Give one of each for every event.';
    END IF;
    RETURN QUERY
    INSERT INTO events (topic, payload, metadata)
    SELECT t.topic, t.payload, t.metadata
    FROM unnest(topics, payloads, metadatas) AS t(topic, payload, metadata)
    RETURNING id;
    PERFORM pg_notify('pgmb_events', '');
END
$$;
