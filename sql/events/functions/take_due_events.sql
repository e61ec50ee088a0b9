-- Return events that are due: postponed and scheduled ones, which now enter the log, and those to dispatch again.
-- Of each kind it returns at most so many events and bytes, but always one.
-- An event keeps its id unless its partition is gone or the id is taken. Transaction id 0 keeps it out of the window in
-- which a poll finds the others.
CREATE FUNCTION pgmb.take_due_events(max_events int, max_bytes bigint)
RETURNS TABLE (event_id pgmb.event_id, subscription_id pgmb.subscription_id)
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
SET plan_cache_mode TO force_custom_plan
SET enable_hashjoin TO off
SET enable_mergejoin TO off
SET enable_seqscan TO off
AS $$
#variable_conflict use_column
DECLARE
    -- A variable bounds the index; the volatile function in its place would have every waiting event looked at.
    now_at CONSTANT timestamptz := clock_timestamp();
    lowest_id varchar;
BEGIN
    IF EXISTS (SELECT FROM scheduled_events AS sc WHERE sc.due_at <= now_at) THEN
        SELECT min(b.lower_bound) INTO lowest_id FROM partition_bounds('events') AS b;
        RETURN QUERY
        WITH due AS (
            DELETE FROM scheduled_events AS sc
            WHERE sc.id IN (
                SELECT weighed.id
                FROM (
                    SELECT
                        waiting.id,
                        sum(waiting.bytes) OVER (ORDER BY waiting.due_at, waiting.id ROWS UNBOUNDED PRECEDING)
                        - waiting.bytes AS bytes_before
                    FROM (
                        SELECT w.id, w.due_at, event_weight(w.payload, w.metadata) AS bytes
                        FROM scheduled_events AS w
                        WHERE w.due_at <= now_at
                        ORDER BY w.due_at, w.id
                        LIMIT max_events
                        FOR UPDATE SKIP LOCKED
                    ) AS waiting
                ) AS weighed
                WHERE weighed.bytes_before < max_bytes
            )
            RETURNING sc.*
        )

        INSERT INTO events AS e (id, topic, payload, metadata, subscription_id, transaction_id)
        SELECT
            CASE
                WHEN d.id < lowest_id OR EXISTS (SELECT FROM events AS known WHERE known.id = d.id)
                    THEN create_event_id_default()
                ELSE d.id
            END,
            d.topic, d.payload, d.metadata, d.subscription_id, '0'
        FROM due AS d
        ORDER BY d.due_at, d.id
        RETURNING e.id, e.subscription_id;
    END IF;
    IF EXISTS (SELECT FROM due_events AS du WHERE du.due_at <= now_at) THEN
        RETURN QUERY
        WITH waiting AS MATERIALIZED (
            SELECT du.event_id, du.due_at
            FROM due_events AS du
            WHERE du.due_at <= now_at
            ORDER BY du.due_at, du.event_id
            LIMIT max_events
            FOR UPDATE SKIP LOCKED
        ),

        weighed AS MATERIALIZED (
            SELECT
                w.event_id, e.id, e.subscription_id,
                sum(e.bytes) OVER (ORDER BY w.due_at, w.event_id ROWS UNBOUNDED PRECEDING) - e.bytes AS bytes_before
            FROM waiting AS w
            -- Of what retention has taken away nothing is left but the name, which goes too.
            LEFT JOIN LATERAL (
                SELECT stored.id, stored.subscription_id, event_weight(stored.payload, stored.metadata) AS bytes
                FROM events AS stored
                WHERE stored.id = w.event_id
                LIMIT 1
            ) AS e ON TRUE
        ),

        done AS (
            DELETE FROM due_events AS du
            USING weighed AS w
            WHERE du.event_id = w.event_id AND (w.bytes_before < max_bytes OR w.id IS NULL)
            RETURNING w.id, w.subscription_id
        )

        SELECT d.id, d.subscription_id
        FROM done AS d
        WHERE d.id IS NOT NULL
        ORDER BY d.id;
    END IF;
END
$$;
