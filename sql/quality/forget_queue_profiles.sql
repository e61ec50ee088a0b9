-- Delete the queues of all but the newest profiles of the same target, mode, cohorts and sample; their sums stay.
-- params: profile_id, keep_profiles
-- rows: none
-- index: profiles_pkey, queue_profiles_pkey
DELETE FROM queuekeeper.queue_profiles
WHERE
    profile_id IN (
        SELECT old.profile_id
        FROM queuekeeper.profiles AS old
        INNER JOIN queuekeeper.profiles AS present
            ON
                old.store = present.store
                AND old.target = present.target
                AND old.mode = present.mode
                AND old.cohorts = present.cohorts
                AND old.sample_percent = present.sample_percent
        WHERE present.profile_id = %(profile_id)s
        ORDER BY old.started_at DESC
        OFFSET %(keep_profiles)s
    )
