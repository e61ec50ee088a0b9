-- Record the servers that cohorts work with; a cohort whose servers have changed becomes dirty.
-- params: plan_id, cohorts, driver, servers
-- rows: one per cohort: (cohort, whether it became dirty)
-- index: online_cohorts_pkey
WITH before AS (
    SELECT
        cohort,
        coalesce(servers <> %(servers)s, FALSE) AS changed
    FROM queuekeeper.online_cohorts
    WHERE
        plan_id = %(plan_id)s
        AND cohort = any(%(cohorts)b::int[])
        AND driver = %(driver)s
    ORDER BY cohort
    FOR UPDATE
)

UPDATE queuekeeper.online_cohorts AS online
SET
    servers = %(servers)s,
    dirty_reason = CASE
        WHEN before.changed THEN 'servers were ' || online.servers || ' and are ' || %(servers)s
        ELSE online.dirty_reason
    END
FROM before
WHERE
    online.plan_id = %(plan_id)s
    AND online.cohort = before.cohort
RETURNING online.cohort, before.changed
