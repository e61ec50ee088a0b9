-- Publish an event for every row that statements insert into, update in or delete from a table, and one for TRUNCATE.
-- The caller must own the table. A second call adds what the first left out and takes nothing away.
CREATE FUNCTION pgmb.push_table_mutations(
    tbl regclass,
    insert boolean DEFAULT TRUE,
    delete boolean DEFAULT TRUE,
    update boolean DEFAULT TRUE,
    truncate boolean DEFAULT TRUE
)
RETURNS void
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    kind text;
    transition_tables text;
BEGIN
    IF (SELECT c.relnamespace = 'pgmb'::regnamespace FROM pg_class AS c WHERE c.oid = tbl) THEN
        RAISE EXCEPTION 'changes of % cannot be published: every event would cause the next one', tbl
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Name a table outside schema pgmb.';
    END IF;
    FOR kind, transition_tables IN
        SELECT w.word, w.tables
        FROM (
            VALUES
            ('insert', insert, 'REFERENCING NEW TABLE AS new'),
            ('delete', delete, 'REFERENCING OLD TABLE AS old'),
            ('update', update, 'REFERENCING OLD TABLE AS old NEW TABLE AS new'),
            ('truncate', truncate, '')
        ) AS w(word, wanted, tables)
        WHERE w.wanted
    LOOP
        IF EXISTS (
            SELECT FROM pg_trigger AS t
            WHERE
                t.tgrelid = tbl
                AND t.tgname = format('post_%s_event', kind)
                AND t.tgfoid <> 'push_table_event()'::regprocedure
        ) THEN
            RAISE EXCEPTION 'table % has a trigger post_%_event that is not ours', tbl, kind
                USING ERRCODE = 'duplicate_object', HINT = 'Rename that trigger, then call push_table_mutations again.';
        END IF;
        EXECUTE format(
            'CREATE OR REPLACE TRIGGER post_%s_event AFTER %s ON %s %s FOR EACH STATEMENT '
            'EXECUTE FUNCTION push_table_event()',
            kind, kind, tbl, transition_tables
        );
    END LOOP;
END
$$;
