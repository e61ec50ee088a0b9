-- Forget what an earlier attempt found in cohorts that are read again.
-- params: profile_id, cohorts
-- rows: none
-- index: queue_profiles_pkey
DELETE FROM queuekeeper.queue_profiles
WHERE
    profile_id = %(profile_id)s
    AND cohort = any(%(cohorts)s::int[])
