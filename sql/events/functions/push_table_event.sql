-- Publish the rows that a statement has changed, for a trigger made by push_table_mutations.
-- An update carries the changed columns, a column that became NULL among them, and its old row as metadata.old.
-- Runs as its owner, so that a role that changes the table needs no right to publish other events.
CREATE FUNCTION pgmb.push_table_event()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    event_topic CONSTANT text := create_topic(TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_OP);
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO events (topic, payload)
        SELECT event_topic, without_null_columns(s.serialised)
        FROM new AS n
        CROSS JOIN LATERAL serialise_record_for_event(TG_RELID, TG_OP, n) AS s
        WHERE s.emit;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO events (topic, payload)
        SELECT event_topic, without_null_columns(s.serialised)
        FROM old AS o
        CROSS JOIN LATERAL serialise_record_for_event(TG_RELID, TG_OP, o) AS s
        WHERE s.emit;
    ELSIF TG_OP = 'UPDATE' THEN
        -- Both transition tables hold the rows in the order in which they were updated.
        INSERT INTO events (topic, payload, metadata)
        SELECT
            event_topic,
            jsonb_diff(after.serialised, before.serialised),
            jsonb_build_object('old', without_null_columns(before.serialised))
        FROM (
            SELECT s.serialised, s.emit, row_number() OVER () AS number
            FROM new AS n
            CROSS JOIN LATERAL serialise_record_for_event(TG_RELID, TG_OP, n) AS s
        ) AS after
        INNER JOIN (
            SELECT s.serialised, row_number() OVER () AS number
            FROM old AS o
            CROSS JOIN LATERAL serialise_record_for_event(TG_RELID, TG_OP, o) AS s
        ) AS before USING (number)
        WHERE after.emit AND jsonb_diff(after.serialised, before.serialised) IS NOT NULL
        ORDER BY number;
    ELSE
        INSERT INTO events (topic, payload) VALUES (event_topic, '{}');
    END IF;
    RETURN NULL;
END
$$;
