-- Rows of the suite of sessions in PostgreSQL: the queues of a profile.
-- params: postgres_profile_id
-- rows: all columns of queue_profiles
-- index: queue_profiles_pkey
SELECT queues.* -- noqa: AM04
FROM queuekeeper.queue_profiles AS queues
WHERE queues.profile_id = %(postgres_profile_id)s
