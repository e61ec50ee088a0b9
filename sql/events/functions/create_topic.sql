-- Return the topic of events about one kind of change of a table, such as public.users.insert.
CREATE FUNCTION pgmb.create_topic(schema_name name, table_name name, kind varchar(16))
RETURNS varchar(255)
LANGUAGE sql
IMMUTABLE
STRICT
PARALLEL SAFE
AS $$
    SELECT lower(schema_name || '.' || table_name || '.' || kind)
$$;
