-- name: has_schema
-- Return whether the schema is there, which a role without any right on it may know.
-- params: none
-- rows: one: (boolean)
-- index: none
SELECT to_regnamespace('queuekeeper') IS NOT NULL AS present;

-- name: has_migrations
-- Return whether any migration was ever applied.
-- params: none
-- rows: one: (boolean)
-- index: none
SELECT to_regclass('queuekeeper.schema_migrations') IS NOT NULL AS present;

-- name: lock_migrations
-- Wait until no other process migrates; held to the end of the transaction.
-- params: key
-- rows: one, without meaning
-- index: none
SELECT pg_advisory_xact_lock(%(key)s);

-- name: applied_migrations
-- Read the applied migrations in order.
-- params: none
-- rows: (version, name, checksum)
-- index: schema_migrations_pkey
SELECT
    version,
    name,
    checksum
FROM queuekeeper.schema_migrations
ORDER BY version;

-- name: record_migration
-- Record that a migration was applied.
-- params: version, name, checksum
-- rows: none
-- index: schema_migrations_pkey
INSERT INTO queuekeeper.schema_migrations (version, name, checksum)
VALUES (%(version)s, %(name)s, %(checksum)s);

-- name: schema_objects
-- List the tables, views and functions that exist, with the comment by which a view or function names its file.
-- params: none
-- rows: (name, comment or null)
-- index: none
SELECT
    relation.relname AS name,
    obj_description(relation.oid, 'pg_class') AS comment
FROM pg_class AS relation
WHERE relation.relnamespace = to_regnamespace('queuekeeper') AND relation.relkind IN ('r', 'p', 'v')
UNION ALL
SELECT
    routine.proname AS name,
    obj_description(routine.oid, 'pg_proc') AS comment
FROM pg_proc AS routine
WHERE routine.pronamespace = to_regnamespace('queuekeeper');

-- name: lock_holders
-- Read the sessions that use the tables of a schema.
-- params: schema
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
    AND c.relnamespace = to_regnamespace(%(schema)s)
    AND l.granted
    AND a.pid <> pg_backend_pid()
ORDER BY a.pid;
