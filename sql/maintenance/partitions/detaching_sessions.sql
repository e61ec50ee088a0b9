-- Count the sessions that are detaching a partition of this database right now.
-- params: none
-- rows: one: (sessions)
-- index: none, the server's own view
SELECT count(*) AS sessions
FROM pg_stat_activity
WHERE
    datname = current_database()
    AND state = 'active'
    AND pid != pg_backend_pid()
    AND query ~* 'detach\s+partition\s.*(concurrently|finalize)'
