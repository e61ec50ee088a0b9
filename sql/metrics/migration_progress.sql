-- Sum up the progress of the steps of the newest plan.
-- params: none
-- rows: (plan_id, step, done, total)
-- index: progress_pkey
SELECT
    plans.plan_id,
    progress.step,
    cast(sum(progress.done) AS bigint) AS done,
    cast(sum(progress.total) AS bigint) AS total
FROM (
    SELECT plan_id
    FROM queuekeeper.plans
    ORDER BY planned_at DESC, plan_id ASC
    LIMIT 1
) AS plans
INNER JOIN queuekeeper.progress AS progress ON plans.plan_id = progress.plan_id
GROUP BY plans.plan_id, progress.step
ORDER BY progress.step
