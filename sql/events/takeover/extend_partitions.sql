-- Give the new tables partitions for what the settings ask for.
-- params: none
-- rows: one per table: (partitions made)
-- index: none
SELECT pgmb.extend_partitions(p.tbl::regclass) AS made
FROM unnest(ARRAY['pgmb.events', 'pgmb.dispatches', 'pgmb.subscription_events']) AS p (tbl)
