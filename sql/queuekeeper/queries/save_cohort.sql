-- Store what the plan found in one cohort.
-- params: plan_id, cohort, slot_first, slot_last, shard, sessions, clients, messages, payload_bytes, to_copy,
-- expired, trimmed, quarantined, quarantined_by_reason, forecast_bytes, longest_queue
-- rows: none
-- index: cohorts_pkey
INSERT INTO queuekeeper.cohorts (
    plan_id, cohort, slot_first, slot_last, shard, sessions, clients, messages, payload_bytes, to_copy, expired,
    trimmed, quarantined, quarantined_by_reason, forecast_bytes, longest_queue
)
VALUES (
    %(plan_id)s, %(cohort)s, %(slot_first)s, %(slot_last)s, %(shard)s, %(sessions)s, %(clients)s, %(messages)s,
    %(payload_bytes)s, %(to_copy)s, %(expired)s, %(trimmed)s, %(quarantined)s, %(quarantined_by_reason)s,
    %(forecast_bytes)s, %(longest_queue)s
)
