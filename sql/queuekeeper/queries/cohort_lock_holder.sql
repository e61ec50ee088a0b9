-- Name a session that holds one of some cohorts of a plan.
-- params: class, cohorts
-- rows: at most one: (backend pid, start of its session or null)
-- index: none
SELECT
    locks.pid,
    activity.backend_start
FROM pg_catalog.pg_locks AS locks
INNER JOIN pg_catalog.pg_database AS databases ON locks.database = databases.oid
LEFT JOIN pg_catalog.pg_stat_activity AS activity ON locks.pid = activity.pid
WHERE
    locks.locktype = 'advisory'
    AND locks.granted
    AND databases.datname = current_database()
    AND locks.classid = %(class)s::int::oid
    AND locks.objid = any(%(cohorts)s::int[]::oid[])
    AND locks.objsubid = 2
    AND locks.pid <> pg_backend_pid()
ORDER BY activity.backend_start NULLS LAST, locks.pid
LIMIT 1
