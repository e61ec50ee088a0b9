-- Rows of the suite of fan-out queues: each queue and consumer as they were read when the run began.
-- params: quality_run_id
-- rows: the columns of fanout_profiles without run, and client_id: the queue's name
-- index: fanout_profiles_pkey
SELECT
    found.queue,
    found.consumer,
    found.client_hash,
    found.queue AS client_id,
    found.messages,
    found.dead_letters,
    found.missing_payloads,
    found.lost_references,
    found.orphan_payloads,
    found.wrong_counts,
    found.wrong_expiries,
    found.doubled,
    found.left_notes,
    found.lost_leases,
    found.forsaken_s,
    found.expired_s,
    found.dead_overdue_s,
    found.overdue_s,
    found.lease_left_s,
    found.unreadable
FROM queuekeeper.fanout_profiles AS found
WHERE found.quality_run_id = %(quality_run_id)s
