-- Read the curve of a step.
-- params: plan_id, step
-- rows: (at_ms, done)
-- index: throughput_pkey
SELECT
    at_ms,
    done
FROM queuekeeper.throughput
WHERE
    plan_id = %(plan_id)s
    AND step = %(step)s
ORDER BY at_ms
