-- Release the lock of a shard that this session holds.
-- params: key
-- rows: one, without meaning
-- index: none
SELECT pg_advisory_unlock(%(key)s::bigint) AS unlocked
