-- Refuse a change of a session that another store owns, by writers that do not check owners. While a session moves, the
-- change is refused as a serialization failure, after which a transaction is repeated.
-- It runs as the owner of the schema, to which such writers have no rights.
CREATE FUNCTION queuekeeper.refuse_moved_session()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = ''
AS $$
DECLARE
    refused record;
BEGIN
    SELECT found.code, found.why
    INTO refused
    FROM queuekeeper.refused_owners(
        CASE TG_OP
            WHEN 'INSERT' THEN ARRAY[NEW.client_id]
            WHEN 'DELETE' THEN ARRAY[OLD.client_id]
            ELSE ARRAY[OLD.client_id, NEW.client_id]
        END::text[],
        NULL
    ) AS found
    LIMIT 1;
    IF refused.code = 'QK002' THEN
        RAISE EXCEPTION '%', refused.why
        USING ERRCODE = 'serialization_failure', HINT = 'Repeat the transaction in a moment.';
    ELSIF refused.code IS NOT NULL THEN
        RAISE EXCEPTION '%', refused.why
        USING ERRCODE = refused.code, HINT = 'Write to the other store.';
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END;
$$;
