-- Give each subscription its part of every dispatch.
-- params: none
-- rows: none
-- index: dispatches_pkey
INSERT INTO pgmb.subscription_events (id, group_id, subscription_id, positions, match_count)
SELECT
    p.dispatch_id,
    p.group_id,
    p.subscription_id,
    CASE WHEN count(*) < d.event_count THEN array_agg(p.position ORDER BY p.position) END AS positions,
    count(*) AS match_count
FROM (
    SELECT
        m.dispatch_id,
        m.group_id,
        m.subscription_id,
        m.repeated,
        dense_rank() OVER (PARTITION BY m.dispatch_id ORDER BY m.event_id)::int AS position
    FROM takeover_matches AS m
    WHERE m.dispatch_id IS NOT NULL
) AS p
INNER JOIN pgmb.dispatches AS d ON p.dispatch_id::pgmb.event_id = d.id
WHERE NOT p.repeated
GROUP BY p.dispatch_id, p.group_id, p.subscription_id, d.event_count
