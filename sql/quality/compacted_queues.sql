-- Rows of the suite of compacted queues: each queue as it was read when the run began, and whether its cursor has moved
-- back since an earlier run without a rewind.
-- params: quality_run_id
-- rows: the columns of compacted_profiles without run and incarnation, and moved_back
-- index: compacted_profiles_pkey, compacted_profiles_client_hash_idx
SELECT
    queues.client_id,
    queues.client_hash,
    queues.epoch,
    queues.sequence,
    queues.sent,
    queues.acked,
    queues.rewinds,
    queues.live,
    queues.tombstones,
    queues.lag,
    queues.in_flight,
    queues.size_bytes,
    queues.lost_unacked,
    queues.oldest_undelivered_s,
    queues.oldest_unacked_s,
    queues.missing_values,
    queues.orphan_values,
    queues.stale_values,
    queues.index_faults,
    queues.cursor_faults,
    queues.wrong_bytes,
    queues.unreadable,
    queues.registered,
    queues.overdue_s,
    queues.heartbeat_s,
    cast(coalesce(queues.acked < earlier.acked, FALSE) AS int) AS moved_back
FROM queuekeeper.compacted_profiles AS queues
INNER JOIN queuekeeper.quality_runs AS runs ON queues.quality_run_id = runs.quality_run_id
LEFT JOIN LATERAL (
    SELECT past.acked
    FROM queuekeeper.compacted_profiles AS past
    INNER JOIN queuekeeper.quality_runs AS past_runs ON past.quality_run_id = past_runs.quality_run_id
    WHERE
        past.client_hash = queues.client_hash
        AND past.incarnation = queues.incarnation
        AND past.rewinds = queues.rewinds
        AND past_runs.started_at < runs.started_at
    ORDER BY past_runs.started_at DESC
    LIMIT 1
) AS earlier ON TRUE
WHERE queues.quality_run_id = %(quality_run_id)s
