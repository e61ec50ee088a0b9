-- Count what PGMB had and what is ours now, each from its own tables.
-- params: begin_id
-- rows: one per subject and fate: (subject, fate, row_count); the fate of what PGMB had is seen
-- index: none
SELECT
    'events' AS subject,
    'seen' AS fate,
    count(*) AS row_count
FROM pgmb_original.events
UNION ALL
SELECT
    'events' AS subject,
    CASE WHEN e.transaction_id = '0' THEN 'dispatched before' ELSE 'to be dispatched' END AS fate,
    count(*) AS row_count
FROM pgmb.events AS e
GROUP BY fate
UNION ALL
SELECT
    'events' AS subject,
    'scheduled' AS fate,
    count(*) AS row_count
FROM pgmb.scheduled_events
UNION ALL
SELECT
    'unread events' AS subject,
    'seen' AS fate,
    count(*) AS row_count
FROM pgmb_original.unread_events
UNION ALL
SELECT
    'unread events' AS subject,
    CASE
        WHEN e.id IS NOT NULL THEN 'to be dispatched' WHEN sc.id IS NOT NULL THEN 'scheduled' ELSE 'left: event gone'
    END AS fate,
    count(*) AS row_count
FROM pgmb_original.unread_events AS u
LEFT JOIN pgmb.events AS e ON u.event_id::text::pgmb.event_id = e.id AND e.transaction_id <> '0'
LEFT JOIN pgmb.scheduled_events AS sc ON u.event_id::text::pgmb.event_id = sc.id
WHERE
    e.id IS NOT NULL OR sc.id IS NOT NULL
    OR NOT EXISTS (
        SELECT FROM pgmb_original.events AS old
        WHERE old.id = u.event_id
    )
GROUP BY fate
UNION ALL
SELECT
    'groups' AS subject,
    'seen' AS fate,
    count(*) AS row_count
FROM pgmb_original.subscription_groups
UNION ALL
SELECT
    'groups' AS subject,
    'taken over' AS fate,
    count(*) AS row_count
FROM pgmb.subscription_groups
UNION ALL
SELECT
    'subscriptions' AS subject,
    'seen' AS fate,
    count(*) AS row_count
FROM pgmb_original.subscriptions
UNION ALL
SELECT
    'subscriptions' AS subject,
    'taken over' AS fate,
    count(*) AS row_count
FROM pgmb.subscriptions
UNION ALL
SELECT
    'deliveries' AS subject,
    'seen' AS fate,
    count(*) AS row_count
FROM pgmb_original.subscription_events
UNION ALL
SELECT
    'deliveries' AS subject,
    CASE WHEN se.id > %(begin_id)s THEN 'unread' ELSE 'read before' END AS fate,
    sum(se.match_count) AS row_count
FROM pgmb.subscription_events AS se
GROUP BY fate
UNION ALL
SELECT
    'deliveries' AS subject,
    'left: ' || CASE WHEN m.repeated AND m.dispatch_id IS NOT NULL THEN 'repeated' ELSE m.outcome END AS fate,
    count(*) AS row_count
FROM takeover_matches AS m
WHERE m.dispatch_id IS NULL OR m.repeated
GROUP BY fate
UNION ALL
SELECT
    'settings' AS subject,
    'seen' AS fate,
    count(*) AS row_count
FROM pgmb_original.config
UNION ALL
SELECT
    'settings' AS subject,
    'taken over' AS fate,
    count(*) AS row_count
FROM pgmb_original.config AS old
INNER JOIN pgmb.config AS c ON old.id::text = c.id::text
WHERE c.value IS NOT DISTINCT FROM old.value AND c.id NOT IN ('plugin_version', 'use_pg_cron')
UNION ALL
SELECT
    'settings' AS subject,
    'left: ours' AS fate,
    count(*) AS row_count
FROM pgmb_original.config AS old
WHERE old.id::text IN ('plugin_version', 'use_pg_cron')
