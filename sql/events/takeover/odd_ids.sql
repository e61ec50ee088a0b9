-- Find ids that hold no instant, which nothing here could place.
-- params: none
-- rows: one per table that has some: (table, rows, one of them)
-- index: none
SELECT
    'events' AS tbl,
    count(*) AS rows,
    min(e.id) AS example
FROM pgmb_original.events AS e
WHERE e.id !~ '^pm[0-9a-f]{13}'
HAVING count(*) > 0
UNION ALL
SELECT
    'subscription_events' AS tbl,
    count(*) AS rows,
    min(se.id) AS example
FROM pgmb_original.subscription_events AS se
WHERE se.id !~ '^pm[0-9a-f]{13}'
HAVING count(*) > 0
