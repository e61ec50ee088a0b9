-- Sort what PGMB has dispatched: what becomes of each row, and to which dispatch it belongs. Rows of one poll have the
-- instant of their id in common. What was read stays where it was; what was not comes behind all of it, poll by poll.
-- params: begin_id
-- rows: none
-- index: none
CREATE TEMPORARY TABLE takeover_matches ON COMMIT DROP AS
WITH sorted AS (
    SELECT
        left(se.id, 15) COLLATE "C" AS poll,
        se.group_id::text COLLATE "C" AS group_id,
        se.subscription_id::text COLLATE "C" AS subscription_id,
        se.event_id::text COLLATE "C" AS event_id,
        CASE
            WHEN se.group_id IS NULL OR se.subscription_id IS NULL OR se.event_id IS NULL THEN 'incomplete'
            WHEN s.id IS NULL OR g.id IS NULL THEN 'subscription or group gone'
            WHEN e.id IS NULL THEN 'event gone'
            WHEN g.last_read_event_id IS NULL OR se.id::text COLLATE "C" > g.last_read_event_id::text COLLATE "C"
                THEN 'unread'
            ELSE 'read'
        END AS outcome
    FROM pgmb_original.subscription_events AS se
    LEFT JOIN pgmb_original.subscriptions AS s ON se.subscription_id = s.id
    LEFT JOIN pgmb_original.subscription_groups AS g ON se.group_id = g.id
    LEFT JOIN pgmb_original.events AS e ON se.event_id = e.id
)

SELECT
    so.*,
    CASE so.outcome
        WHEN 'read' THEN so.poll || '000000000'
        WHEN 'unread'
            THEN pgmb.create_event_id(
                pgmb.extract_date_from_event_id(%(begin_id)s)
                + dense_rank() OVER (PARTITION BY so.outcome ORDER BY so.poll) * interval '1 microsecond',
                0
            )::text
    END AS dispatch_id,
    row_number() OVER (PARTITION BY so.outcome, so.poll, so.group_id, so.subscription_id, so.event_id) > 1 AS repeated
FROM sorted AS so
