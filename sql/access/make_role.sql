-- Make a role unless it is there, and let it connect; roles belong to the whole server.
DO $queuekeeper$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'the_role') THEN
        CREATE ROLE "the_role" LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS;
    END IF;
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), 'the_role');
END
$queuekeeper$;
