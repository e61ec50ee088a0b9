-- No longer count this session among those that share a rate.
-- params: class
-- rows: one, without meaning
-- index: none
SELECT pg_advisory_unlock_shared(%(class)s::int, 0) AS was_held
