-- Read the settings and state of a server that decide whether it keeps data safe.
-- params: none
-- rows: one: (is_standby, wal_level, fsync, full_page_writes, synchronous_commit, autovacuum, max_connections,
-- connections, encrypted, now_ms, frozen_share, data_directory); frozen_share of the age at which autovacuum freezes at
-- the latest; data_directory is null for a role that may not know it
-- index: none, the catalog's own
SELECT
    pg_is_in_recovery() AS is_standby,
    current_setting('wal_level') AS wal_level,
    current_setting('fsync') = 'on' AS fsync,
    current_setting('full_page_writes') = 'on' AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('autovacuum') = 'on' AS autovacuum,
    cast(current_setting('max_connections') AS int) AS max_connections,
    (
        SELECT count(*) FROM pg_stat_activity
        WHERE backend_type = 'client backend'
    ) AS connections,
    coalesce((
        SELECT ssl FROM pg_stat_ssl
        WHERE pid = pg_backend_pid()
    ), FALSE) AS encrypted,
    cast(floor(extract(EPOCH FROM clock_timestamp()) * 1000) AS bigint) AS now_ms,
    (
        SELECT
            cast(
                max(age(datfrozenxid))
                / cast(current_setting('autovacuum_freeze_max_age') AS numeric) AS double precision
            )
        FROM pg_database
    ) AS frozen_share,
    (
        SELECT setting FROM pg_settings
        WHERE name = 'data_directory'
    ) AS data_directory
