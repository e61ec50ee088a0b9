-- Count the sessions that hold cohorts of a plan, which are its running copies.
-- params: class
-- rows: one: (copies)
-- index: none
SELECT count(DISTINCT locks.pid) AS copies
FROM pg_catalog.pg_locks AS locks
INNER JOIN pg_catalog.pg_database AS databases ON locks.database = databases.oid
WHERE
    locks.locktype = 'advisory'
    AND locks.granted
    AND databases.datname = current_database()
    AND locks.classid = %(class)s::int::oid
    AND locks.objsubid = 2
