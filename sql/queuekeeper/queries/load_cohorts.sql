-- Read what the plan found, cohort by cohort.
-- params: plan_id
-- rows: (cohort, slot_first, slot_last, shard, sessions, clients, messages, payload_bytes, to_copy, expired, trimmed,
-- quarantined, quarantined_by_reason, forecast_bytes, longest_queue)
-- index: cohorts_pkey
SELECT
    cohort,
    slot_first,
    slot_last,
    shard,
    sessions,
    clients,
    messages,
    payload_bytes,
    to_copy,
    expired,
    trimmed,
    quarantined,
    quarantined_by_reason,
    forecast_bytes,
    longest_queue
FROM queuekeeper.cohorts
WHERE plan_id = %(plan_id)s
ORDER BY cohort
