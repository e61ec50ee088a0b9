-- Return the client whose queue the newest profiles name by a hash.
-- params: client_hash
-- rows: at most one: (client_id)
-- index: queue_profiles_pkey, a profile at a time
SELECT queue_profiles.client_id
FROM queuekeeper.queue_profiles
WHERE
    queue_profiles.client_hash = %(client_hash)s
    AND queue_profiles.profile_id IN (
        SELECT profiles.profile_id
        FROM queuekeeper.profiles
        WHERE profiles.finished_at IS NOT NULL
        ORDER BY profiles.started_at DESC
        LIMIT 4
    )
ORDER BY queue_profiles.profile_id
LIMIT 1
