-- Sum a profile up by cohort, those without queues included.
-- params: profile_id, shards
-- rows: none
-- index: queue_profiles_pkey, profiles_pkey
INSERT INTO queuekeeper.cohort_profiles (
    profile_id, cohort, shard, queues, messages, live, dead, payload_bytes, faulty_queues
)
SELECT
    profiles.profile_id,
    chosen.cohort,
    (%(shards)b::text[])[chosen.cohort + 1] AS shard,
    count(queues.client_id) AS queues,
    coalesce(sum(queues.messages), 0) AS messages,
    coalesce(sum(queues.live), 0) AS live,
    coalesce(sum(queues.dead), 0) AS dead,
    coalesce(sum(queues.payload_bytes), 0) AS payload_bytes,
    count(queues.client_id) FILTER (
        WHERE greatest(
            queues.over_limit, queues.dead_crowding, queues.tied_serials, queues.bad_serials, queues.step_errors,
            queues.bad_packet_ids, queues.duplicate_packet_ids, queues.foreign_references, queues.orphans,
            queues.counter_missing, queues.counter_invalid, queues.counter_behind, queues.without_ttl,
            queues.ttl_too_long, queues.oversized, queues.unreadable, queues.mismatched, queues.bad_qos, queues.qos_0,
            queues.bad_packet_types, queues.wrong_type_keys, queues.bad_tag, queues.odd_characters,
            queues.missing_session, queues.state_faults, queues.in_both_layouts
        ) > 0
    ) AS faulty_queues
FROM queuekeeper.profiles
CROSS JOIN LATERAL unnest(profiles.cohorts) AS chosen (cohort)
LEFT JOIN queuekeeper.queue_profiles AS queues
    ON
        profiles.profile_id = queues.profile_id
        AND chosen.cohort = queues.cohort
WHERE profiles.profile_id = %(profile_id)s
GROUP BY profiles.profile_id, chosen.cohort
