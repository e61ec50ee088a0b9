-- List the newest plans, latest first.
-- params: maximum
-- rows: (plan_id, state, planned_at, approved_by, cohorts chosen, cohorts verified, messages to copy, messages copied)
-- index: progress_pkey, cohorts_pkey
SELECT
    plans.plan_id,
    plans.state,
    plans.planned_at,
    plans.approved_by,
    cardinality(plans.chosen) AS chosen,
    (
        SELECT count(*)
        FROM queuekeeper.cohorts
        WHERE cohorts.plan_id = plans.plan_id AND cohorts.state = 'verified'
    ) AS verified,
    (
        SELECT coalesce(sum(cohorts.to_copy), 0)::bigint
        -- As a join, since searching an array of ten thousand cohorts for each of them takes a second.
        FROM unnest(plans.chosen) AS wanted (cohort)
        INNER JOIN queuekeeper.cohorts ON wanted.cohort = cohorts.cohort
        WHERE cohorts.plan_id = plans.plan_id
    ) AS to_copy,
    (
        SELECT coalesce(sum(progress.done), 0)::bigint
        FROM queuekeeper.progress
        WHERE progress.plan_id = plans.plan_id AND progress.step = 'copy'
    ) AS copied
FROM queuekeeper.plans
ORDER BY plans.planned_at DESC, plans.plan_id ASC
LIMIT %(maximum)s
