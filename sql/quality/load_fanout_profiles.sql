-- Take in what was found in fan-out queues.
-- params: none; rows follow in the order of the columns
-- rows: none
-- index: none
COPY queuekeeper.fanout_profiles (
    quality_run_id, queue, consumer, client_hash, messages, dead_letters, missing_payloads, lost_references,
    orphan_payloads, wrong_counts, wrong_expiries, doubled, left_notes, lost_leases, forsaken_s, expired_s,
    dead_overdue_s, overdue_s, lease_left_s, unreadable
) FROM STDIN
