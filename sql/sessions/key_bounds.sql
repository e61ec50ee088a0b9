-- Return client ids that cut the source into ranges of about as many rows, by a sample of the tables' blocks:
-- each share of the rows lies before one of the ids, and so many percent of the blocks are read.
-- params: shares, percent
-- rows: one: (client ids, in the order of the key; null without rows)
-- index: none; reads a sample
SELECT percentile_disc(%(shares)b::float8[]) WITHIN GROUP (ORDER BY sample.client_id) AS bounds
FROM (
    SELECT client_id FROM device_publish_msg TABLESAMPLE SYSTEM (%(percent)s)
    UNION ALL
    SELECT client_id FROM device_session_ctx TABLESAMPLE SYSTEM (%(percent)s)
) AS sample
