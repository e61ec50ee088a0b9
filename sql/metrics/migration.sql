-- Read the state of the newest plan of a migration.
-- params: none
-- rows: none or one: (plan_id, state, to_copy, expired, trimmed, quarantined, unaccounted, differences,
-- throttle_messages_per_s); unaccounted and differences are null before it was verified
-- index: cohorts_pkey, ledger_pkey
SELECT
    plans.plan_id,
    plans.state,
    cohorts.to_copy,
    cohorts.expired,
    cohorts.trimmed,
    cohorts.quarantined,
    judged.unaccounted,
    judged.differences,
    plans.throttle_messages_per_s
FROM (
    SELECT *
    FROM queuekeeper.plans
    ORDER BY planned_at DESC, plan_id ASC
    LIMIT 1
) AS plans
CROSS JOIN
    LATERAL (
        SELECT
            cast(coalesce(sum(found.to_copy), 0) AS bigint) AS to_copy,
            cast(coalesce(sum(found.expired), 0) AS bigint) AS expired,
            cast(coalesce(sum(found.trimmed), 0) AS bigint) AS trimmed,
            cast(coalesce(sum(found.quarantined), 0) AS bigint) AS quarantined
        FROM queuekeeper.cohorts AS found
        WHERE found.plan_id = plans.plan_id AND found.cohort = any(plans.chosen)
    ) AS cohorts
CROSS JOIN LATERAL (
    SELECT
        cast(sum(abs(ledger.unaccounted)) AS bigint) AS unaccounted,
        cast(sum(ledger.differences) AS bigint) AS differences
    FROM queuekeeper.ledger AS ledger
    WHERE ledger.plan_id = plans.plan_id
) AS judged
