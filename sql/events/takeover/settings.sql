-- Read PGMB's settings, the interval of partitions first: how far ahead they may reach is judged by it.
-- params: none
-- rows: one per setting: (key, value)
-- index: none
SELECT
    c.id::text AS key,
    c.value
FROM pgmb_original.config AS c
ORDER BY c.id <> 'partition_interval', key
