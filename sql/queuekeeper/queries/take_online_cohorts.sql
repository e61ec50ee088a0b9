-- Become the driver of cohorts; the one before is refused from now on.
-- params: plan_id, cohorts
-- rows: one per cohort: (driver)
-- index: online_cohorts_pkey
WITH taken AS MATERIALIZED (
    SELECT nextval('queuekeeper.online_drivers') AS driver
)

UPDATE queuekeeper.online_cohorts
SET driver = taken.driver
FROM taken
WHERE
    plan_id = %(plan_id)s
    AND cohort = any(%(cohorts)s::int[])
RETURNING taken.driver
