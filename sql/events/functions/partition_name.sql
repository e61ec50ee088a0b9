-- Return a name for a partition that is free in the schema of its table. It tells people where the partition begins,
-- and is not used for anything else.
CREATE FUNCTION pgmb.partition_name(tbl regclass, suffix text)
RETURNS text
LANGUAGE plpgsql
STABLE
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    schema_name CONSTANT text := (SELECT c.relnamespace::regnamespace FROM pg_class AS c WHERE c.oid = tbl);
    base CONSTANT text := (SELECT c.relname FROM pg_class AS c WHERE c.oid = tbl) || '_' || suffix;
    free_name text := base;
    number int := 1;
BEGIN
    WHILE to_regclass(format('%s.%I', schema_name, free_name)) IS NOT NULL LOOP
        number := number + 1;
        free_name := base || '_' || number;
    END LOOP;
    RETURN free_name;
END
$$;
