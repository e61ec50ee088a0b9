-- Make a session independent of the settings of role, database and server.
-- params: none
-- rows: one, without meaning
-- index: none
SELECT
    set_config('TimeZone', 'UTC', FALSE) AS time_zone,
    set_config('DateStyle', 'ISO', FALSE) AS date_style,
    set_config('default_transaction_isolation', 'read committed', FALSE) AS isolation
