-- Name the other plans whose cohorts move, or may move, at this moment.
-- params: plan_id
-- rows: (plan_id)
-- index: none
SELECT DISTINCT plan_id
FROM queuekeeper.online_cohorts
WHERE
    state NOT IN ('planned', 'committed')
    AND plan_id <> %(plan_id)s
ORDER BY plan_id
