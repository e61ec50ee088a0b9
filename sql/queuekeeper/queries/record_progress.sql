-- Note how far one part of a step has come; a task that starts again starts from its first count.
-- params: plan_id, step, part, done, total, at_ms
-- rows: none
-- index: progress_pkey
INSERT INTO queuekeeper.progress (plan_id, step, part, done, total, updated_at_ms)
VALUES (%(plan_id)s, %(step)s, %(part)s, %(done)s, %(total)s, %(at_ms)s)
ON CONFLICT (plan_id, step, part) DO UPDATE
    SET
        done = excluded.done,
        total = excluded.total,
        updated_at_ms = excluded.updated_at_ms
