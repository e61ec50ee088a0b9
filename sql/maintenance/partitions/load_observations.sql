-- Read the latest successful maintenances of a table, latest first.
-- params: table
-- rows: (observed_at_ms, highest_key)
-- index: partition_observations_pkey
SELECT
    observed_at_ms,
    highest_key
FROM queuekeeper.partition_observations
WHERE table_name = %(table)s
ORDER BY observed_at_ms DESC
LIMIT 8
