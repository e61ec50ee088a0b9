-- Give the rest of this transaction the connection's own limit again, after limit_trial.
-- params: none
-- rows: one, without meaning
-- index: none
SELECT set_config('statement_timeout', current_setting('pgmb.statement_timeout'), TRUE) AS statement_timeout
