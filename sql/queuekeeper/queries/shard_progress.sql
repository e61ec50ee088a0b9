-- Read how far a run has come, shard by shard.
-- params: maintenance_run_id
-- rows: (shard, cursor, scanned, removed, repaired, freed_bytes, counts, done, updated_at)
-- index: maintenance_progress_pkey, progress_pkey, online_cohorts_pkey
SELECT
    shard,
    cursor,
    scanned,
    removed,
    repaired,
    freed_bytes,
    counts,
    done,
    updated_at
FROM queuekeeper.run_progress
WHERE maintenance_run_id = %(maintenance_run_id)s
ORDER BY shard
