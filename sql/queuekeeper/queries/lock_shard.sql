-- Try to lock one shard of a run for this session, without waiting.
-- params: key
-- rows: one: (whether this session holds it now)
-- index: none
SELECT pg_try_advisory_lock(%(key)s::bigint) AS locked
