-- Find the queues with the most faults: first by faults that lose or reorder messages, then by all faults.
-- params: profile_id, maximum
-- rows: (queue); all columns of queue_profiles as JSON
-- index: queue_profiles_pkey
WITH weighed AS (
    SELECT
        client_id,
        layout,
        client_hash,
        tied_serials + bad_serials + counter_missing + counter_invalid + counter_behind + dead_crowding
        + coalesce(foreign_references, 0) + coalesce(wrong_type_keys, 0) + coalesce(duplicate_packet_ids, 0)
        + coalesce(mismatched, 0) + coalesce(missing_session, 0) + coalesce(state_faults, 0)
        + coalesce(in_both_layouts, 0) AS grave,
        over_limit + step_errors + bad_packet_ids + oversized + bad_tag + odd_characters + coalesce(orphans, 0)
        + coalesce(without_ttl, 0) + coalesce(ttl_too_long, 0) + coalesce(unreadable, 0) + coalesce(bad_qos, 0)
        + coalesce(bad_packet_types, 0) + coalesce(qos_0, 0) AS light
    FROM queuekeeper.queue_profiles
    WHERE profile_id = %(profile_id)s
),

worst AS (
    SELECT
        client_id,
        layout,
        client_hash,
        grave,
        light
    FROM weighed
    WHERE grave > 0 OR light > 0
    ORDER BY grave DESC, light DESC, client_hash ASC
    LIMIT %(maximum)s
)

SELECT to_jsonb(queues.*) AS queue
FROM worst
INNER JOIN queuekeeper.queue_profiles AS queues
    ON
        worst.client_id = queues.client_id
        AND worst.layout = queues.layout
        AND queues.profile_id = %(profile_id)s
ORDER BY worst.grave DESC, worst.light DESC, worst.client_hash ASC
