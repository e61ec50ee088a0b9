-- name: load_compacted_profiles
-- Load the rows of compacted queues.
-- params: none; rows follow in the order of the columns
-- rows: none
-- index: none
COPY queuekeeper.compacted_profiles (
    quality_run_id, client_id, client_hash, incarnation, epoch, sequence, sent, acked, rewinds, live, tombstones, lag,
    in_flight, size_bytes, lost_unacked, oldest_undelivered_s, oldest_unacked_s, missing_values, orphan_values,
    stale_values, index_faults, cursor_faults, wrong_bytes, unreadable, registered, overdue_s, heartbeat_s
) FROM STDIN;

-- name: delete_compacted_profiles
-- Delete the compacted queues of this run, which are read again, and of old runs.
-- params: quality_run_id, suite, keep_runs, keep_fast_runs
-- rows: none
-- index: compacted_profiles_pkey
DELETE FROM queuekeeper.compacted_profiles
WHERE
    quality_run_id = %(quality_run_id)s
    OR quality_run_id IN (
        SELECT quality_run_id
        -- include: old_runs_of_suite
    );

-- name: load_fanout_profiles
-- Load the rows of fan-out queues.
-- params: none; rows follow in the order of the columns
-- rows: none
-- index: none
COPY queuekeeper.fanout_profiles (
    quality_run_id, queue, consumer, client_hash, messages, dead_letters, missing_payloads, lost_references,
    orphan_payloads, wrong_counts, wrong_expiries, doubled, left_notes, lost_leases, forsaken_s, expired_s,
    dead_overdue_s, overdue_s, lease_left_s, unreadable
) FROM STDIN;

-- name: delete_fanout_profiles
-- Delete the fan-out queues of this run, which are read again, and of old runs.
-- params: quality_run_id, suite, keep_runs, keep_fast_runs
-- rows: none
-- index: fanout_profiles_pkey
DELETE FROM queuekeeper.fanout_profiles
WHERE
    quality_run_id = %(quality_run_id)s
    OR quality_run_id IN (
        SELECT quality_run_id
        -- include: old_runs_of_suite
    );
