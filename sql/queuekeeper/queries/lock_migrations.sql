-- Wait until no other process migrates; held to the end of the transaction.
-- params: key
-- rows: one, without meaning
-- index: none
SELECT pg_advisory_xact_lock(%(key)s)
