-- Store events that a handler has given up as dead letters, with their reason; return their number.
-- An event that comes again, because its first death was not acknowledged or its replay has failed, is written once.
-- retry_id is the retry that failed last, if any: its copies are used if retention has removed the events.
CREATE FUNCTION pgmb.fail_events(
    sid varchar(24),
    event_ids varchar(24)[],
    handler_name text,
    reason text,
    attempts int,
    retry_id varchar(24) DEFAULT NULL
)
RETURNS int
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    failed int;
BEGIN
    INSERT INTO dead_letters (
        event_id, topic, payload, metadata, group_id, subscription_id, handler, reason, attempts
    )
    SELECT
        c.event ->> 'id', c.event ->> 'topic',
        coalesce(c.event -> 'payload', 'null'), nullif(c.event -> 'metadata', 'null'),
        (SELECT s.group_id FROM subscriptions AS s WHERE s.id = sid),
        sid, handler_name, fail_events.reason, fail_events.attempts
    FROM (
        SELECT d.event, min(d.place) AS place
        FROM jsonb_array_elements(copy_events(event_ids, retry_id)) WITH ORDINALITY AS d(event, place)
        GROUP BY d.event
    ) AS c
    ORDER BY c.place
    ON CONFLICT (subscription_id, handler, event_id) DO UPDATE
    SET reason = excluded.reason, attempts = excluded.attempts, died_at = now(), replayed_at = NULL;
    GET DIAGNOSTICS failed = ROW_COUNT;
    RETURN failed;
END
$$;
