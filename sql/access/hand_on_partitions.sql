-- Let one role read the tables that another role will create, in the schemas that it will create, if both roles exist.
DO $queuekeeper$
BEGIN
    IF
        EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'the_maker')
        AND EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'the_role')
    THEN
        ALTER DEFAULT PRIVILEGES FOR ROLE "the_maker" GRANT SELECT ON TABLES TO "the_role";
        ALTER DEFAULT PRIVILEGES FOR ROLE "the_maker" GRANT USAGE ON SCHEMAS TO "the_role";
    END IF;
END
$queuekeeper$;
