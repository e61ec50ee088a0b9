-- Return whether a schema exists, and the rights of this role on it.
-- params: schema_name
-- rows: one: (whether it exists, whether tables may be put into it, whether schemas may be created)
-- index: none, the catalog's own
SELECT
    room.oid IS NOT NULL AS is_present,
    coalesce(has_schema_privilege(room.oid, 'CREATE'), FALSE) AS may_fill,
    has_database_privilege(own.oid, 'CREATE') AS may_create
FROM pg_database AS own
LEFT JOIN pg_namespace AS room ON room.nspname = %(schema_name)s
WHERE own.datname = current_database()
