-- Let the rest of a transaction take as long as it takes, whatever role, database and server allow.
-- params: none
-- rows: one per setting, without meaning
-- index: none
SELECT set_config(name, '0', TRUE) AS setting
FROM pg_catalog.pg_settings
WHERE name IN ('idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout')
