-- Forget a profile with all its rows.
-- params: profile_id
-- rows: none
-- index: profiles_pkey, queue_profiles_pkey, cohort_profiles_pkey, expiry_hours_pkey
DELETE FROM queuekeeper.profiles
WHERE profile_id = %(profile_id)s
