-- Find the queues with a fault that a remedy repairs, by a profile; named queues in any case.
-- params: remedy, profile_ids, cohorts, client_hashes; client_hashes: null for all that are faulty
-- rows: (client_id, client_hash), in the order of the hashes
-- index: queue_profiles_pkey
SELECT DISTINCT
    queue.client_id,
    queue.client_hash
FROM queuekeeper.queue_profiles AS queue
WHERE
    queue.profile_id = any(%(profile_ids)b::text[])
    AND queue.cohort = any(%(cohorts)b::int[])
    AND (%(client_hashes)b::text[] IS NULL OR queue.client_hash = any(%(client_hashes)b::text[]))
    AND (
        %(client_hashes)b::text[] IS NOT NULL
        OR CASE %(remedy)s::text
            WHEN 'repair_counter' THEN queue.counter_missing + queue.counter_invalid + queue.counter_behind > 0
            WHEN 'repair_ttl' THEN queue.without_ttl > 0 OR queue.ttl_too_long > 0
            WHEN 'repair_state' THEN queue.layout = 'packed' AND queue.state_faults + queue.bad_serials > 0
            WHEN 'reorder_from_source'
                THEN queue.layout = 'tbmq' AND queue.tied_serials + queue.bad_serials + queue.step_errors > 0
            WHEN 'unlink_orphans' THEN queue.orphans > 0
            WHEN 'remove_duplicates' THEN queue.duplicate_messages > 0
            WHEN 'rekey_clients' THEN queue.bad_tag > 0
            WHEN 'trim_dead_first' THEN queue.over_limit > 0 OR queue.dead_crowding > 0
            WHEN 'quarantine_messages'
                THEN
                    queue.bad_packet_ids > 0 OR queue.foreign_references > 0 OR queue.unreadable > 0
                    OR queue.mismatched > 0 OR queue.bad_qos > 0 OR queue.bad_packet_types > 0
                    OR queue.wrong_type_keys > 0 OR queue.duplicate_packet_ids > 0
            -- A profile does not look for rows in quarantine.
            WHEN 'replay_quarantined' THEN TRUE
            ELSE FALSE
        END
    )
ORDER BY queue.client_hash
