-- Rows that the suite of sessions in PostgreSQL looks at: the queues of a profile, and whether expired rows stay long.
-- params: postgres_profile_id
-- rows: columns of queue_profiles, then (session_limit, is_overdue)
-- index: queue_profiles_pkey
SELECT
    queues.*, -- noqa: AM04
    profiles.session_limit,
    -- The broker removes expired rows once a night: what is older than two days it does not remove.
    cast(
        queues.dead > 0 AND queues.earliest_expires_at_ms < profiles.as_of_ms - 172800000 AS int
    ) AS is_overdue
FROM queuekeeper.queue_profiles AS queues
INNER JOIN queuekeeper.profiles AS profiles ON queues.profile_id = profiles.profile_id
WHERE queues.profile_id = %(postgres_profile_id)s
