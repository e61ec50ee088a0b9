-- Let a role read the keys of the tables that policies name, and no other column.
DO $queuekeeper$
DECLARE
    readable record;
BEGIN
    FOR readable IN
        SELECT
            relation.oid::regclass AS name,
            namespace.nspname AS schema_name,
            attribute.attname AS key_column
        FROM queuekeeper.partition_policies AS policies
        INNER JOIN pg_catalog.pg_class AS relation ON relation.oid = to_regclass(policies.table_name)
        INNER JOIN pg_catalog.pg_namespace AS namespace ON relation.relnamespace = namespace.oid
        INNER JOIN pg_catalog.pg_partitioned_table AS partitioned ON relation.oid = partitioned.partrelid
        INNER JOIN pg_catalog.pg_attribute AS attribute
            ON relation.oid = attribute.attrelid AND partitioned.partattrs[0] = attribute.attnum
    LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', readable.schema_name, 'the_role');
        EXECUTE format('GRANT SELECT (%I) ON TABLE %s TO %I', readable.key_column, readable.name, 'the_role');
    END LOOP;
END
$queuekeeper$;
