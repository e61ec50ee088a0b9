-- Limit how long the rest of the transaction waits for a lock.
-- params: patience_ms
-- rows: one: (the bound)
-- index: none
SELECT set_config('lock_timeout', (%(patience_ms)s::int)::text, TRUE) AS lock_timeout
