-- Publish events for one subscription alone, whatever its condition; their ids come in the order of the arrays.
CREATE FUNCTION pgmb.send(sid varchar(24), topics text[], payloads jsonb[], metadatas jsonb[] DEFAULT NULL)
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
    IF NOT EXISTS (SELECT FROM subscriptions AS s WHERE s.id = sid) THEN
        RAISE EXCEPTION 'there is no subscription %', sid
            USING ERRCODE = 'foreign_key_violation', HINT = 'It may have expired: subscribe again.';
    END IF;
    RETURN QUERY
    INSERT INTO events (topic, payload, metadata, subscription_id)
    SELECT t.topic, t.payload, t.metadata, sid
    FROM unnest(topics, payloads, metadatas) AS t(topic, payload, metadata)
    RETURNING id;
    PERFORM pg_notify('pgmb_events', '');
END
$$;
