-- Deliver events again to one handler of one subscription after a delay; return the id of the retry event, or NULL when
-- none of the events is stored any more, or the subscription is gone.
-- The retry event has topic pgmb-retry, the keys that clients of PGMB know (ids, retryNumber, handlerName) and, in
-- events, its own copies, which retention does not remove. retry_id is the retry that has now failed, if any.
CREATE FUNCTION pgmb.schedule_retry(
    sid varchar(24),
    event_ids varchar(24)[],
    retry_number int,
    handler_name text,
    delay interval,
    retry_id varchar(24) DEFAULT NULL
)
RETURNS pgmb.event_id
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    copies CONSTANT jsonb := copy_events(event_ids, retry_id);
BEGIN
    IF copies IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN schedule_event(
        clock_timestamp() + delay,
        'pgmb-retry',
        jsonb_build_object(
            'ids', event_ids, 'retryNumber', retry_number, 'handlerName', handler_name, 'events', copies
        ),
        NULL,
        sid
    );
EXCEPTION
    WHEN foreign_key_violation THEN
        RETURN NULL;
END
$$;
