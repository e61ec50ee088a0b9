-- Have ownership noted and checked for the clients of a cohort; one that is further already is left alone.
-- params: plan_id, cohort, slot_first, slot_last
-- rows: none
-- index: online_cohorts_pkey
INSERT INTO queuekeeper.online_cohorts (plan_id, cohort, slot_first, slot_last, state)
VALUES (%(plan_id)s, %(cohort)s, %(slot_first)s, %(slot_last)s, 'copying')
ON CONFLICT (plan_id, cohort) DO UPDATE SET
    state = 'copying',
    step_at = clock_timestamp()
WHERE online_cohorts.state IN ('planned', 'caught_up', 'verified')
