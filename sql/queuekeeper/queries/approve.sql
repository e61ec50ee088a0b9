-- Note who agreed to a plan; one that is at work already keeps its state, a refused one is left alone.
-- params: plan_id, approved_by, approved_at
-- rows: at most one: (plan_id)
-- index: plans_pkey
UPDATE queuekeeper.plans
SET
    state = CASE state WHEN 'planned' THEN 'approved' ELSE state END,
    approved_by = %(approved_by)s,
    approved_at = coalesce(%(approved_at)s::timestamptz, clock_timestamp()),
    updated_at = clock_timestamp()
WHERE
    plan_id = %(plan_id)s
    AND state <> 'refused'
RETURNING plan_id
