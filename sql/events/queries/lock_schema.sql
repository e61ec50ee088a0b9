-- Let one process at a time install or remove the event broker, until the transaction ends.
-- params: key
-- rows: one, without meaning
-- index: none
SELECT pg_advisory_xact_lock(%(key)s::bigint) AS locked
