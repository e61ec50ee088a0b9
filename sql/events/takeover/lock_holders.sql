-- Read the sessions that use PGMB's tables.
-- params: none
-- rows: one per session: (pid, application, user), by pid
-- index: none
SELECT DISTINCT
    a.pid,
    coalesce(nullif(a.application_name, ''), 'no name') AS application,
    a.usename
FROM pg_locks AS l
INNER JOIN pg_database AS d ON l.database = d.oid
INNER JOIN pg_class AS c ON l.relation = c.oid
INNER JOIN pg_stat_activity AS a ON l.pid = a.pid
WHERE
    d.datname = current_database()
    AND c.relnamespace = to_regnamespace('pgmb')
    AND l.granted
    AND a.pid <> pg_backend_pid()
ORDER BY a.pid
