-- Refuse subscriptions whose condition may not be stored or fails on one of the latest events; one that takes long ends
-- the statement as a statement_timeout does.
-- For each distinct condition of a statement once. Runs as its owner: who subscribes need not read all events.
CREATE FUNCTION pgmb.check_subscriptions()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    conditions refcursor;
    condition text;
    ids varchar[];
    failure text;
BEGIN
    IF TG_OP = 'INSERT' THEN
        OPEN conditions FOR
        SELECT n.conditions_sql, array_agg(n.id::varchar) FROM new_rows AS n GROUP BY n.conditions_sql;
    ELSE
        OPEN conditions FOR
        SELECT n.conditions_sql, array_agg(n.id::varchar)
        FROM new_rows AS n
        LEFT JOIN old_rows AS o ON o.id = n.id AND o.conditions_sql = n.conditions_sql AND o.params = n.params
        WHERE o.id IS NULL
        GROUP BY n.conditions_sql;
    END IF;
    LOOP
        FETCH conditions INTO condition, ids;
        EXIT WHEN NOT FOUND;
        failure := (SELECT c.failure FROM check_condition(condition, ids) AS c);
        IF failure IS NOT NULL THEN
            RAISE EXCEPTION 'condition "%" is refused: %', condition, failure
                USING ERRCODE = 'invalid_parameter_value',
                HINT = 'It sees one event e and one subscription s, such as '
                    's.params @> jsonb_build_object(''topic'', e.topic); CASE WHEN guards a cast.';
        END IF;
    END LOOP;
    CLOSE conditions;
    RETURN NULL;
END
$$;
