-- Only a session whose cohort no other driver has taken over.
AND NOT EXISTS (
    SELECT 1 AS one
    FROM queuekeeper.online_cohorts AS cohort
    WHERE
        cohort.state NOT IN ('planned', 'committed')
        AND known.slot BETWEEN cohort.slot_first AND cohort.slot_last
        AND cohort.driver <> %(driver)s
)
