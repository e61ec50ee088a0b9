-- Return the number that identifies a server's data directory; NULL without the right to read it.
CREATE FUNCTION pgmb.server_identifier()
RETURNS bigint
LANGUAGE plpgsql
STABLE
SET search_path TO pgmb, pg_temp
AS $$
BEGIN
    IF has_function_privilege('pg_control_system()', 'EXECUTE') THEN
        RETURN (SELECT c.system_identifier FROM pg_control_system() AS c);
    END IF;
    RETURN NULL;
END
$$;
