-- Read how full the server is.
-- params: none
-- rows: one: (database_bytes, connections, max_connections, frozen_share); frozen_share of the age at which autovacuum
-- freezes at the latest
-- index: none, the catalog's own
SELECT
    pg_database_size(current_database()) AS database_bytes,
    (
        SELECT count(*) FROM pg_stat_activity
        WHERE backend_type = 'client backend'
    ) AS connections,
    cast(current_setting('max_connections') AS int) AS max_connections,
    (
        SELECT
            cast(
                max(age(datfrozenxid))
                / cast(current_setting('autovacuum_freeze_max_age') AS numeric) AS double precision
            )
        FROM pg_database
    ) AS frozen_share
