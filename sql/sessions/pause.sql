-- Wait a while, in a transaction of its own.
-- params: seconds
-- rows: one, empty
-- index: none
SELECT pg_sleep(%(seconds)s)
