-- End every statement of this session that takes longer.
-- params: timeout_ms
-- rows: one, without meaning
-- index: none
SELECT set_config('statement_timeout', %(timeout_ms)s::text, FALSE) AS statement_timeout
