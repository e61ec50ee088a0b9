-- Describe a table that is to be archived, or was archived.
-- params: table_name; quoted as SQL needs it
-- rows: at most one: (oid, name with schema, schema, name alone, kind, whether it is attached to a partitioned table,
-- system identifier, database, encoding of the database)
-- index: of the system catalog
SELECT
    class.oid,
    format('%%I.%%I', namespace.nspname, class.relname) AS name,
    namespace.nspname AS schema,
    class.relname AS bare_name,
    class.relkind AS kind,
    class.relispartition AS is_attached,
    control.system_identifier,
    current_database() AS database,
    getdatabaseencoding() AS encoding
FROM pg_class AS class
INNER JOIN pg_namespace AS namespace ON class.relnamespace = namespace.oid
CROSS JOIN pg_control_system() AS control
WHERE class.oid = to_regclass(%(table_name)s)
