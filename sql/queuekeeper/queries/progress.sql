-- Sum up how far a step has come; parts is null for all of them.
-- params: plan_id, step, parts
-- rows: one: (done, total, parts, updated_at_ms)
-- index: progress_pkey
SELECT
    coalesce(sum(done), 0)::bigint AS done,
    coalesce(sum(total), 0)::bigint AS total,
    count(*) AS parts,
    max(updated_at_ms) AS updated_at_ms
FROM queuekeeper.progress
WHERE
    plan_id = %(plan_id)s
    AND step = %(step)s
    AND (%(parts)s::text[] IS NULL OR part = any(%(parts)s::text[]))
