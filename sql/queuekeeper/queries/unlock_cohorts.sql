-- Release cohorts that this session holds.
-- params: class, cohorts
-- rows: one per cohort, without meaning
-- index: none
SELECT pg_advisory_unlock(%(class)s::int, cohort) AS unlocked
FROM unnest(%(cohorts)s::int[]) AS held (cohort)
