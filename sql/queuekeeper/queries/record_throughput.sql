-- Note how many messages were done at an instant.
-- params: plan_id, step, at_ms, done
-- rows: none
-- index: throughput_pkey
INSERT INTO queuekeeper.throughput (plan_id, step, at_ms, done)
VALUES (%(plan_id)s, %(step)s, %(at_ms)s, %(done)s)
ON CONFLICT (plan_id, step, at_ms) DO UPDATE
    SET done = excluded.done
