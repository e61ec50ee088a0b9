-- Return the state of a migration: its plan, who approved it, and how much its chosen cohorts have to do.
-- params: plan_id
-- rows: at most one: (state, reason, throttle, paused, approved_by, approved_at, planned_at, run_id, chosen, to_copy,
-- how much of it is in cohorts that a verification has judged)
-- index: plans_pkey, cohorts_pkey
SELECT
    plans.state,
    plans.state_reason,
    plans.throttle_messages_per_s,
    plans.paused,
    plans.approved_by,
    plans.approved_at,
    plans.planned_at,
    (
        SELECT plan_runs.run_id
        FROM queuekeeper.plan_runs
        WHERE plan_runs.plan_id = plans.plan_id
        ORDER BY plan_runs.created_at DESC
        LIMIT 1
    ) AS run_id,
    plans.chosen,
    todo.to_copy,
    todo.judged
FROM queuekeeper.plans
CROSS JOIN
    LATERAL (
        SELECT
            coalesce(sum(cohorts.to_copy), 0)::bigint AS to_copy,
            coalesce(sum(cohorts.to_copy) FILTER (WHERE cohorts.state IN ('verified', 'failed')), 0)::bigint AS judged
        -- As a join, since searching an array of ten thousand cohorts for each of them takes a second.
        FROM unnest(plans.chosen) AS wanted (cohort)
        INNER JOIN queuekeeper.cohorts ON wanted.cohort = cohorts.cohort
        WHERE cohorts.plan_id = plans.plan_id
    ) AS todo
WHERE plans.plan_id = %(plan_id)s
