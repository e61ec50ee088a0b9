-- name: pin_session
-- Make a session independent of the settings of role, database and server. A machine that dies closes no connection:
-- with these settings its sessions lose their locks within a minute, before the work is started again elsewhere.
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
-- Remove the time limits of role, database and server for the rest of a transaction.
-- params: none
-- rows: one per setting, without meaning
-- index: none
SELECT set_config(name, '0', TRUE) AS setting
FROM pg_catalog.pg_settings
WHERE name IN ('idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout');

-- name: server_clock
-- Return the time.
-- params: none
-- rows: one: (milliseconds since 1970)
-- index: none
SELECT floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint AS now_ms;

-- name: server_facts
-- Return the version of PostgreSQL, and the size of the database.
-- params: none
-- rows: one: (version, size in bytes)
-- index: none
SELECT
    current_setting('server_version') AS server_version,
    pg_database_size(current_database()) AS size_bytes;

-- name: server_identity
-- Return the identifier of the database cluster, and how often a standby has taken over.
-- params: none
-- rows: one: (system_identifier, timeline)
-- index: none
SELECT
    system.system_identifier,
    checkpoint.timeline_id AS timeline
FROM pg_control_system() AS system
CROSS JOIN pg_control_checkpoint() AS checkpoint;
