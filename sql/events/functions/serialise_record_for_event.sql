-- Return what an event about a row of a table carries, and whether it is published at all.
-- Replace this function to leave out columns, rows or tables; op is INSERT, UPDATE or DELETE.
-- kept by upgrades
CREATE FUNCTION pgmb.serialise_record_for_event(
    tabl oid, op text, record record, OUT serialised jsonb, OUT emit boolean
)
LANGUAGE plpgsql
IMMUTABLE
STRICT
PARALLEL SAFE
AS $$
BEGIN
    serialised := to_jsonb(record);
    emit := TRUE;
END
$$;
