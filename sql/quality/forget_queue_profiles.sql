-- Drop the queues of profiles beyond the newest of the same store, mode and cohorts; their sums stay.
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
                AND old.mode = present.mode
                AND old.cohorts = present.cohorts
        WHERE present.profile_id = %(profile_id)s
        ORDER BY old.started_at DESC
        OFFSET %(keep_profiles)s
    )
