-- Record a successful maintenance, and delete records older than a year.
-- params: table, observed_at_ms, highest_key
-- rows: none
-- index: partition_observations_pkey
WITH forgotten AS (
    DELETE FROM queuekeeper.partition_observations
    WHERE table_name = %(table)s AND observed_at_ms < %(observed_at_ms)s - 31536000000
)

INSERT INTO queuekeeper.partition_observations (table_name, observed_at_ms, highest_key)
VALUES (%(table)s, %(observed_at_ms)s, %(highest_key)s)
ON CONFLICT (table_name, observed_at_ms) DO UPDATE SET highest_key = excluded.highest_key
