-- Take in what was found in queues.
-- params: none; rows follow as CSV in the order of the columns
-- rows: none
-- index: none
COPY queuekeeper.queue_profiles (
    profile_id, client_id, client_hash, cohort, slot, shard, messages, live, dead, over_limit, dead_crowding,
    lowest_serial, highest_serial, serial_gaps, tied_serials, bad_serials, step_errors, bad_packet_ids,
    duplicate_packet_ids, duplicate_messages, foreign_references, orphans, last_packet_id, counter_missing,
    counter_invalid, counter_behind, without_ttl, ttl_too_long, payload_bytes, largest_bytes, oversized, unreadable,
    mismatched, bad_qos, qos_0, bad_packet_types, wrong_type_keys, bad_tag, odd_characters, idle_keys,
    missing_session, earliest_expires_at_ms, latest_expires_at_ms
) FROM STDIN (FORMAT csv)
