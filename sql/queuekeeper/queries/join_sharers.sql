-- Count this session among those that share a rate, until it leaves or its connection ends.
-- params: class
-- rows: one, without meaning
-- index: none
SELECT pg_advisory_lock_shared(%(class)s::int, 0) AS joined
