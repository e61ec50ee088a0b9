-- Read the curve of a step from an instant on, in order of time.
-- params: plan_id, step, since_ms
-- rows: (at_ms, done)
-- index: throughput_pkey
SELECT
    at_ms,
    done
FROM queuekeeper.throughput
WHERE
    plan_id = %(plan_id)s
    AND step = %(step)s
    AND at_ms >= %(since_ms)s
ORDER BY at_ms
