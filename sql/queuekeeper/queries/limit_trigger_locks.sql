-- Bound how long the rest of the transaction waits for a table's lock, behind which all other writers wait.
-- params: patience_ms
-- rows: one: (the bound)
-- index: none
SELECT set_config('lock_timeout', (%(patience_ms)s::int)::text, TRUE)
