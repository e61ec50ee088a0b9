-- Count the sessions that share a rate: each holds a lock of its name.
-- params: class
-- rows: one: (sharers)
-- index: none
SELECT count(DISTINCT locks.pid) AS sharers
FROM pg_catalog.pg_locks AS locks
INNER JOIN pg_catalog.pg_database AS databases ON locks.database = databases.oid
WHERE
    locks.locktype = 'advisory'
    AND locks.granted
    AND databases.datname = current_database()
    AND locks.classid = %(class)s::int::oid
    AND locks.objsubid = 2
