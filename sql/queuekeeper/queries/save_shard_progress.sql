-- Note how far a run has come in one shard.
-- params: maintenance_run_id, shard, cursor, scanned, removed, repaired, freed_bytes, counts, done
-- rows: none
-- index: maintenance_progress_pkey
INSERT INTO queuekeeper.maintenance_progress (
    maintenance_run_id, shard, cursor, scanned, removed, repaired, freed_bytes, counts, done
)
VALUES (
    %(maintenance_run_id)s, %(shard)s, %(cursor)s, %(scanned)s, %(removed)s, %(repaired)s, %(freed_bytes)s,
    %(counts)s, %(done)s
)
ON CONFLICT (maintenance_run_id, shard) DO UPDATE
    SET
        cursor = excluded.cursor,
        scanned = excluded.scanned,
        removed = excluded.removed,
        repaired = excluded.repaired,
        freed_bytes = excluded.freed_bytes,
        counts = excluded.counts,
        done = excluded.done,
        updated_at = clock_timestamp()
