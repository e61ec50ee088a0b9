-- Return copies of events as a JSON array in the order of their ids in event_ids, or NULL when none is left.
-- What is no longer stored is taken from the retry event retry_id, which has copies of its own.
CREATE FUNCTION pgmb.copy_events(event_ids varchar(24)[], retry_id varchar(24) DEFAULT NULL)
RETURNS jsonb
LANGUAGE sql
STABLE
SET search_path TO pgmb, pg_temp
AS $$
    SELECT jsonb_agg(coalesce(stored.event, retried.event) ORDER BY wanted.place)
    FROM unnest(event_ids) WITH ORDINALITY AS wanted(id, place)
    LEFT JOIN (
        SELECT
            e.id,
            jsonb_build_object('id', e.id, 'topic', e.topic, 'payload', e.payload, 'metadata', e.metadata) AS event
        FROM read_events(copy_events.event_ids::event_id[]) AS e
    ) AS stored ON stored.id = wanted.id
    LEFT JOIN (
        SELECT DISTINCT ON (copied.event ->> 'id') copied.event
        FROM read_events(ARRAY[copy_events.retry_id]::event_id[]) AS r
        CROSS JOIN LATERAL jsonb_array_elements(
            -- Anybody may publish under this topic.
            CASE WHEN jsonb_typeof(r.payload -> 'events') = 'array' THEN r.payload -> 'events' END
        ) AS copied(event)
        WHERE r.topic = 'pgmb-retry'
    ) AS retried ON retried.event ->> 'id' = wanted.id AND stored.id IS NULL
    WHERE stored.id IS NOT NULL OR retried.event IS NOT NULL
$$;
