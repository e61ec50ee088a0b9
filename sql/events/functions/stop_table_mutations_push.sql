-- End what push_table_mutations began; triggers of the same names that are not ours stay.
CREATE FUNCTION pgmb.stop_table_mutations_push(tbl regclass)
RETURNS void
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    trigger_name name;
BEGIN
    FOR trigger_name IN
        SELECT t.tgname FROM pg_trigger AS t
        WHERE t.tgrelid = tbl AND t.tgfoid = 'push_table_event()'::regprocedure
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', trigger_name, tbl);
    END LOOP;
END
$$;
