-- End every statement of this session that waits longer for a lock; without a time, wait as the server is set.
-- params: timeout_ms
-- rows: one, without meaning
-- index: none
SELECT set_config('lock_timeout', %(timeout_ms)s::text, FALSE) AS lock_timeout
