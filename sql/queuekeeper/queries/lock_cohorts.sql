-- Try to lock cohorts of a plan for this session, without waiting.
-- params: class, cohorts
-- rows: (cohort, whether this session holds it now)
-- index: none
SELECT
    cohort,
    pg_try_advisory_lock(%(class)s::int, cohort) AS locked
FROM unnest(%(cohorts)s::int[]) AS wanted (cohort)
