-- Forget the progress of the parts whose names begin alike.
-- params: plan_id, step, parts_prefix
-- rows: none
-- index: progress_pkey
DELETE FROM queuekeeper.progress
WHERE
    plan_id = %(plan_id)s
    AND step = %(step)s
    AND starts_with(part, %(parts_prefix)s)
