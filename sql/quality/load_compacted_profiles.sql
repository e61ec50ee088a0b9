-- Take in what was found in compacted queues.
-- params: none; rows follow in the order of the columns
-- rows: none
-- index: none
COPY queuekeeper.compacted_profiles (
    quality_run_id, client_id, client_hash, incarnation, epoch, sequence, sent, acked, rewinds, live, tombstones, lag,
    in_flight, size_bytes, lost_unacked, oldest_undelivered_s, oldest_unacked_s, missing_values, orphan_values,
    stale_values, index_faults, cursor_faults, wrong_bytes, unreadable, registered, overdue_s, heartbeat_s
) FROM STDIN
