-- Make dispatches of what PGMB has dispatched, events in the order of their ids.
-- params: none
-- rows: none
-- index: none
INSERT INTO pgmb.dispatches (id, event_ids, event_count, first_event_id, dispatched_at)
SELECT
    d.dispatch_id,
    array_agg(d.event_id ORDER BY d.event_id) AS event_ids,
    count(*) AS event_count,
    min(d.event_id) AS first_event_id,
    pgmb.extract_date_from_event_id(d.dispatch_id::pgmb.event_id) AS dispatched_at
FROM (
    SELECT DISTINCT
        m.dispatch_id,
        m.event_id
    FROM takeover_matches AS m
    WHERE m.dispatch_id IS NOT NULL
) AS d
GROUP BY d.dispatch_id
