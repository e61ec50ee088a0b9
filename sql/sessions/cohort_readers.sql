-- List the open transactions that have checked which cohorts are armed, the oldest first.
-- params: none
-- rows: (name of the transaction, process or null when it is a prepared one, application, seconds since it began)
-- index: none; reads the locks of the server
SELECT
    held.virtualtransaction,
    held.pid,
    coalesce(activity.application_name, '') AS application_name,
    coalesce(extract(EPOCH FROM clock_timestamp() - activity.xact_start), 0)::int AS seconds
FROM pg_catalog.pg_locks AS held
LEFT JOIN pg_catalog.pg_stat_activity AS activity ON held.pid = activity.pid
WHERE
    held.relation = 'queuekeeper.online_cohorts'::regclass
    AND held.database = (
        SELECT oid
        FROM pg_catalog.pg_database
        WHERE datname = current_database()
    )
    AND held.mode = 'AccessShareLock'
    AND held.granted
    AND held.pid IS DISTINCT FROM pg_backend_pid()
ORDER BY activity.xact_start, held.virtualtransaction
