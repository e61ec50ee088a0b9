-- Create a table that can become a partition of another one, and return it. This blocks no other session.
CREATE FUNCTION pgmb.create_partition(tbl regclass, suffix text)
RETURNS regclass
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    full_name CONSTANT text := format(
        '%s.%I', (SELECT c.relnamespace::regnamespace FROM pg_class AS c WHERE c.oid = tbl), partition_name(tbl, suffix)
    );
BEGIN
    EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL)', full_name, tbl);
    RETURN full_name::regclass;
END
$$;
