-- Return the number by which a server's data directory differs from every other; NULL where nobody may ask for it.
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
