-- Make a table fit to become a partition of another, and return it. Nobody waits for that.
CREATE FUNCTION pgmb.create_partition(tbl regclass, suffix text)
RETURNS regclass
LANGUAGE plpgsql
VOLATILE
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    free_name CONSTANT text := partition_name(tbl, suffix);
BEGIN
    EXECUTE format('CREATE TABLE pgmb.%I (LIKE %s INCLUDING ALL)', free_name, tbl);
    RETURN format('pgmb.%I', free_name)::regclass;
END
$$;
