-- Let a role alter the tables that policies name, and the event broker's: it becomes a member of their owners, but
-- never of a superuser, nor of the owner of the audit, which no other role may change. It may create schemas for
-- retired partitions, and for rows that are copied out of a DEFAULT partition.
DO $queuekeeper$
DECLARE
    altered record;
BEGIN
    FOR altered IN
        SELECT
            relation.oid::regclass AS name,
            owners.rolname AS owner_name,
            owners.rolsuper AS is_superusers,
            owners.oid = (
                SELECT audit.relowner FROM pg_catalog.pg_class AS audit WHERE audit.oid = 'queuekeeper.audit'::regclass
            ) AS is_auditors
        FROM (
            SELECT policies.table_name
            FROM queuekeeper.partition_policies AS policies
            UNION
            SELECT broker.table_name
            FROM (VALUES ('pgmb.events'), ('pgmb.dispatches'), ('pgmb.subscription_events')) AS broker (table_name)
        ) AS wanted
        INNER JOIN pg_catalog.pg_class AS relation ON relation.oid = to_regclass(wanted.table_name)
        INNER JOIN pg_catalog.pg_roles AS owners ON relation.relowner = owners.oid
    LOOP
        IF altered.is_superusers THEN
            RAISE WARNING '% belongs to superuser %: give it to a role of its own, then run this again',
                altered.name, altered.owner_name;
        ELSIF altered.is_auditors THEN
            RAISE WARNING '% belongs to %, and so does schema queuekeeper with its audit: give one of them to another '
                'role, then run this again', altered.name, altered.owner_name;
        ELSE
            EXECUTE format('GRANT %I TO %I', altered.owner_name, 'the_role');
        END IF;
    END LOOP;
    EXECUTE format('GRANT CREATE ON DATABASE %I TO %I', current_database(), 'the_role');
END
$queuekeeper$;
