-- Let a role read the tables that policies name and their partitions, retired ones too.
DO $queuekeeper$
DECLARE
    readable record;
BEGIN
    FOR readable IN
        SELECT
            relation.oid::regclass AS name,
            namespace.nspname AS schema_name
        FROM (
            SELECT tree.relid::oid AS oid
            FROM queuekeeper.partition_policies AS policies
            CROSS JOIN LATERAL pg_partition_tree(to_regclass(policies.table_name)) AS tree
            UNION
            SELECT retired.partition_oid AS oid
            FROM queuekeeper.retired_partitions AS retired
            WHERE retired.state = 'quarantined'
        ) AS wanted
        INNER JOIN pg_catalog.pg_class AS relation ON wanted.oid = relation.oid
        INNER JOIN pg_catalog.pg_namespace AS namespace ON relation.relnamespace = namespace.oid
    LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', readable.schema_name, 'the_role');
        EXECUTE format('GRANT SELECT ON TABLE %s TO %I', readable.name, 'the_role');
    END LOOP;
END
$queuekeeper$;
