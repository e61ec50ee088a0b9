-- name: pin_session
-- Make a session independent of the settings of role, database and server. A machine that is gone closes nothing: its
-- sessions lose their locks within a minute, before the work is begun again elsewhere.
-- params: none
-- rows: one, without meaning
-- index: none
SELECT
    set_config('TimeZone', 'UTC', FALSE) AS time_zone,
    set_config('DateStyle', 'ISO', FALSE) AS date_style,
    set_config('default_transaction_isolation', 'read committed', FALSE) AS isolation,
    set_config('tcp_keepalives_idle', '30', FALSE) AS idle_s,
    set_config('tcp_keepalives_interval', '10', FALSE) AS interval_s,
    set_config('tcp_keepalives_count', '3', FALSE) AS probes;

-- name: allow_long_statements
-- Let the rest of a transaction take as long as it takes, whatever role, database and server allow.
-- params: none
-- rows: one per setting, without meaning
-- index: none
SELECT set_config(name, '0', TRUE) AS setting
FROM pg_catalog.pg_settings
WHERE name IN ('idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout');

-- name: server_clock
-- Tell the time.
-- params: none
-- rows: one: (milliseconds since 1970)
-- index: none
SELECT floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint AS now_ms;

-- name: server_facts
-- Tell which PostgreSQL this is, and how large the database.
-- params: none
-- rows: one: (version, size in bytes)
-- index: none
SELECT
    current_setting('server_version') AS server_version,
    pg_database_size(current_database()) AS size_bytes;

-- name: server_identity
-- Tell which database cluster this is, and how often a standby has taken over from it.
-- params: none
-- rows: one: (system_identifier, timeline)
-- index: none
SELECT
    system.system_identifier,
    checkpoint.timeline_id AS timeline
FROM pg_control_system() AS system
CROSS JOIN pg_control_checkpoint() AS checkpoint;
